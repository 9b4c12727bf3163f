"""Faults that the tests must find, planted one at a time in a copy of the repository.

    python benchmarks/mutants.py [NUMBER ...]          # by `make test`
    python benchmarks/mutants.py --rest NUMBER ...     # by what CI runs besides

The folder named with a fault is tried first; all quick tests follow where it finds nothing. Exits
with 1 if a fault is not found.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]

#: Each a file, what stands there, the fault, and the folder of tests that should find it.
FAULTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["fault"]


LIMIT = 900.0  # seconds of the tests of a folder; a fault that makes them endless is found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("numbers", nargs=-1, type=click.IntRange(1, len(FAULTS)))
@click.option("--rest", is_flag=True, help="Try what CI runs besides `make test`.")
def main(numbers: tuple[int, ...], rest: bool) -> None:
    """Plant each fault and say which test finds it, and in how many seconds."""
    missed = []
    for number in numbers or range(1, len(FAULTS) + 1):
        fault, began = FAULTS[number - 1], time.monotonic()
        found = try_fault(rest=rest, **fault)
        missed += [] if found else [number]
        print(f"{number:2} {fault['file']}: {fault['right']!r} -> {fault['wrong']!r}")
        print(f"   {found or 'NOT FOUND'}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"not found: {missed}" if missed else "all found")
    sys.exit(bool(missed))


def try_fault(file: str, right: str, wrong: str, tests: str, *, rest: bool) -> str:
    """Return the first test that fails where a fault is planted; empty if none does."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tempfile.TemporaryDirectory() as copy:
        for name in filter(lambda name: (ROOT / name).is_file(), listed.stdout.splitlines()):
            Path(copy, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, Path(copy, name), follow_symlinks=False)
        source = Path(copy, "optsched", file)
        text = source.read_text(encoding="utf-8")
        if text.count(right) != 1:
            raise click.ClickException(f"{file} has {right!r} {text.count(right)} times, not once")
        source.write_text(text.replace(right, wrong), encoding="utf-8")
        half = (
            ["--rest", "tests", "papers", "serving"] if rest else ["--quick", "tests", "optsched"]
        )
        for chosen in ([half[0], f"tests/{tests}"], half):
            run = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-xq", "-n2", "-p", "no:cacheprovider", *chosen],
                cwd=copy,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                printed, _ = run.communicate(timeout=LIMIT * (1 + (chosen is half)))
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                return f"{' '.join(chosen)} does not end"
            lines = printed.splitlines()
            if failed := [line for line in lines if line.startswith(("FAILED", "ERROR"))]:
                return failed[0].partition(" - ")[0]
            if any(
                how in printed for how in ("assert not any(codes.values())", "BrokenProcessPool")
            ):
                return "tests/first_kernels.py, in a command that fails or takes all memory"
            if run.returncode not in (0, 5):  # 5: there is no such test
                raise click.ClickException(printed[-2000:])
    return ""


if __name__ == "__main__":
    main()
