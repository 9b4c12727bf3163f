"""The long form: all parts for some minutes, one table, and a JSON file that is resumed."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from campaign import agreement, certificates, command_line, kills, limits, readers
from campaign.case import Outcome
from optsched._internal.files import write_whole

#: Parts by name, with their share of the time.
PARTS = {
    "readers": (readers, 0.1),
    "command-line": (command_line, 0.17),
    "kills": (kills, 0.17),
    "limits": (limits, 0.1),
    "agreement": (agreement, 0.4),
    "certificates": (certificates, 0.06),
}
LARGE = "a million requests"
SAVE_EVERY = 10.0  # seconds


class State:
    """What was tried so far, in a JSON file."""

    def __init__(self, path, seed):
        self.path, self.seed = path, seed
        self.next, self.seconds, self.totals = {}, {}, {}
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["seed"] != seed:
                raise click.ClickException(f"{path} is of another seed; name another file")
            self.next, self.seconds = content["next"], content["seconds"]
            self.totals = {name: Outcome(**total) for name, total in content["parts"].items()}

    def add(self, name, outcome, number, seconds):
        """Count a case."""
        outcome.findings = [f"case {number}: {finding}" for finding in outcome.findings]
        self.totals.setdefault(name, Outcome()).add(outcome)
        self.next[name] = number + 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def save(self):
        """Write everything."""
        parts = {name: asdict(total) for name, total in self.totals.items()}
        content = {"seed": self.seed, "next": self.next, "seconds": self.seconds, "parts": parts}
        write_whole(self.path, json.dumps(content, indent=1).encode())


def run_part(name, state, seconds, folder):
    """Run cases of a part until its time is over."""
    part, _ = PARTS[name]
    began = saved = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        number = state.next.get(name, 0)
        place = folder / f"{name}-{number}"
        place.mkdir()
        outcome = part.case(state.seed * 10**9 + number, place)
        state.add(name, outcome, number, time.monotonic() - now)
        for finding in outcome.findings:
            click.echo(f"{name}, {finding}", err=True)
        if now - saved > SAVE_EVERY:
            state.save()
            saved = now


def table(state):
    """Show what was tried, part by part."""
    shown = Table("part", "cases", "inputs", "faults", "findings", "seconds")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, total in state.totals.items():
        counts = (total.inputs, total.faults, len(total.findings), round(state.seconds[name]))
        shown.add_row(name, f"{state.next[name]:,}", *(f"{count:,}" for count in counts))
    return shown


@click.command()
@click.option("--minutes", type=float, default=20.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--part", "names", type=click.Choice(list(PARTS)), multiple=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("campaign.json"))
@click.option("--only", type=int, help="Run one case of one part again, and print its findings.")
def main(minutes, seed, names, out, only):
    """Put optsched under abuse for some minutes; goes on where OUT ends, and keeps it on Ctrl-C."""
    names = names or tuple(PARTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if only is not None:
            outcome = PARTS[names[0]][0].case(seed * 10**9 + only, folder)
            click.echo("\n".join(outcome.findings) or "no finding")
            return
        state = State(out, seed)
        share = sum(PARTS[name][1] for name in names)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            if "limits" in names and LARGE not in state.totals:
                began = time.monotonic()
                outcome = limits.large_trace(1_000_000, folder)
                state.add(LARGE, outcome, 0, time.monotonic() - began)
            for name in names:
                run_part(name, state, 60 * minutes * PARTS[name][1] / share, folder)
        except KeyboardInterrupt:
            click.echo("interrupted; the same command goes on", err=True)
        state.save()
    Console().print(table(state))
    for name, total in state.totals.items():
        for note, count in sorted(total.notes.items()):
            click.echo(f"{name}: {note}: {count:,}")
    raise SystemExit(any(total.findings for total in state.totals.values()))


main()
