"""The long form: all parts side by side on all cores, one table, and a JSON file to go on from."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from campaign import (
    agreement,
    certificates,
    clocks,
    command_line,
    kills,
    limits,
    models,
    pool,
    readers,
    regrets,
    twins,
    worlds,
)
from campaign.case import Outcome, Part
from optsched._internal.files import write_whole

PARTS = {
    "readers": Part(readers.case, goal=200_000, batch=200),
    "models": Part(models.case, goal=80_000, batch=100),
    "solvers": Part(agreement.case, goal=20_000, batch=20, unit=agreement.BOTH),
    "certificates": Part(certificates.case, goal=100_000, batch=20),
    "clocks": Part(clocks.case, goal=2_000, batch=20, unit="instances"),
    "twins": Part(twins.case, goal=100_000, batch=50),
    "worlds": Part(worlds.case, goal=1_000_000, batch=200),
    "regrets": Part(regrets.case, goal=5_000, batch=5),
    "kills": Part(kills.case, goal=250, batch=1, unit="faults", warm=()),
    "limits": Part(limits.case, goal=1_000, batch=2, unit="faults"),
    "command line": Part(command_line.case, goal=10_000, batch=10, warm=command_line.WARM),
    "a million requests": Part(limits.million, goal=1, batch=1, warm=()),
}
SAVE_EVERY = 10.0  # seconds
GRACE = 60.0  # seconds that batches have to end when the time is over


class State:
    """What was tried so far, in a JSON file."""

    def __init__(self, path, seed):
        self.path, self.seed = path, seed
        self.totals = {name: Outcome() for name in PARTS}
        self.done = {name: set() for name in PARTS}  # batches
        self.begun = {name: set() for name in PARTS}
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["seed"] != seed:
                sys.exit(f"{path} is of seed {content['seed']}; name another file")
            for name, part in content["parts"].items():
                self.done[name] = set(range(part["first"])) | set(part["ahead"])
                self.totals[name] = Outcome(**part["total"])

    def progress(self, name):
        """Return the share of its goal that a part has reached, with what is on its way."""
        part, cases = PARTS[name], len(self.done[name]) * PARTS[name].batch
        each = part.reached(self.totals[name]) / cases if cases else 1.0
        return each * (cases + len(self.begun[name]) * part.batch) / part.goal

    def next(self, names):
        """Return the next batch of the part that is furthest from its goal; None if all are met."""
        name = min(names, key=self.progress)
        if self.progress(name) >= 1:
            return None
        taken = self.done[name] | self.begun[name]
        batch = next(number for number in range(len(taken) + 1) if number not in taken)
        self.begun[name].add(batch)
        return name, batch

    def add(self, name, batch, outcome):
        """Count a batch that has ended."""
        self.begun[name].discard(batch)
        self.done[name].add(batch)
        self.totals[name].add(outcome)

    def save(self):
        """Write everything."""
        parts = {}
        for name, done in self.done.items():
            first = next(number for number in range(len(done) + 1) if number not in done)
            ahead = sorted(number for number in done if number > first)
            parts[name] = {"first": first, "ahead": ahead, "total": asdict(self.totals[name])}
        content = {"seed": self.seed, "parts": parts}
        write_whole(self.path, json.dumps(content, indent=1).encode())


def run(state, names, seconds, jobs):
    """Carry out batches until all goals are met or the time is over; end all processes then."""
    end = time.monotonic() + seconds
    saved = shown = time.monotonic()
    workers = [pool.Worker(PARTS, state.seed) for _ in range(jobs)]
    try:
        while True:
            for worker in workers:
                if worker.task is None and time.monotonic() < end and (task := state.next(names)):
                    worker.begin(task)
            if not any(worker.task for worker in workers) or time.monotonic() > end + GRACE:
                break
            for worker, outcome in pool.ended(workers, seconds=1.0):
                name, batch = worker.task
                worker.task = None
                state.add(name, batch, outcome)
                for finding in outcome.findings:
                    print(f"{name}, {finding}", file=sys.stderr, flush=True)
            workers = [w if w.alive else pool.Worker(PARTS, state.seed) for w in workers]
            now = time.monotonic()
            if now - saved > SAVE_EVERY:
                state.save()
                saved = now
            if now - shown > 3 * SAVE_EVERY:
                shares = (f"{name} {state.progress(name):.1%}" for name in names)
                print(", ".join(shares), file=sys.stderr, flush=True)
                shown = now
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
    finally:
        for worker in workers:
            worker.kill()
        state.save()


def table(state):
    """Return what was tried as a table; README.md says it in words."""
    lines = [
        "| part | inputs | faults | findings | inputs per core-second |",
        "|---|---|---|---|---|",
    ]
    for name, total in state.totals.items():
        rate = total.inputs / total.cpu if total.cpu else 0.0
        counts = (f"{count:,}" for count in (total.inputs, total.faults, len(total.findings)))
        lines.append(f"| {name} | {' | '.join(counts)} | {rate:.3g} |")
    cpu, wall = (
        sum(getattr(total, of) for total in state.totals.values()) for of in ("cpu", "wall")
    )
    return "\n".join(
        [*lines, f"In all {cpu / 60:,.1f} CPU minutes, {wall / 60:,.1f} of wall time."]
    )


def main():
    """Put optsched under abuse; goes on where the file ends, and keeps it on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("campaign.json"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="run one case of one part, and print its findings")
    options = parser.parse_args()
    names = options.part or list(PARTS)
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            number = options.seed * pool.CASES + options.only
            outcome = PARTS[names[0]].case(number, Path(folder))
        print("\n".join(outcome.findings) or "no finding")
        return
    state, began = State(options.out, options.seed), time.monotonic()
    pool.warm([PARTS[name] for name in names], options.jobs)
    left = 60 * options.minutes - (time.monotonic() - began)
    run(state, names, left, options.jobs)
    print(table(state))
    for name, total in state.totals.items():
        for note, count in sorted(total.notes.items()):
            print(f"{name}: {note}: {count:,}")
    sys.exit(any(total.findings for total in state.totals.values()))


if __name__ == "__main__":
    main()
