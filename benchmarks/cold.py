"""What the first call costs: CPU seconds of each command with no machine code kept, and once more.

    python benchmarks/cold.py [COMMAND ...]         # all of them
    python benchmarks/cold.py --kernels COMMAND     # what each kernel adds to the first call

CPU seconds of the process and its children. They grow by up to a half where other work shares the
cores; the two calls of a row then differ by about the same factor.
"""

from __future__ import annotations

import collections
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import click

CLOCK = "llama-2-70b-2xa100"
CLUSTER = "cluster family:chat-and-summaries,n=300,rate=20 --workers 4 --slots 16"
COMMANDS = {
    "compare": "compare family:chat-and-summaries,n=2000,seed=1",
    "compare, intervals": "compare family:chat-and-summaries,n=500 --intervals relative:0.5",
    "compare, clock": f"compare family:chat-and-summaries,n=500,rate=3 --clock {CLOCK}",
    "bound": "bound family:chat-and-summaries,n=2000,seed=1",
    "solve, tiny": "solve family:uniform,n=6,seed=1",
    "solve, ten": "solve family:uniform,n=10,seed=1",
    "solve": "solve family:chat-and-summaries,n=200,seed=1 --time-limit 5",
    "simulate": f"simulate family:uniform,n=100,rate=3 --policy area --clock {CLOCK}",
    "simulate, vllm": f"simulate family:chat,n=100,rate=3 --policy vllm --clock {CLOCK}",
    "cluster, fcfs": f"{CLUSTER} --policies fcfs",
    "cluster": CLUSTER,
    "route": "route family:chat-and-summaries,n=300 --workers 4 --routers jsq --time-limit 4",
    "rolling": "rolling family:uniform,n=30,seed=1",
    "doctor": "doctor",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[COMMAND ...]")
@click.option("--kernels", is_flag=True, help="What each kernel adds to the first call.")
def main(names: tuple[str, ...], kernels: bool) -> None:
    """Measure what the first call of a command costs."""
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        raise click.UsageError(f"no command {unknown[0]!r}; choose of {', '.join(COMMANDS)}")
    if kernels:
        for name in names or COMMANDS:
            with tempfile.TemporaryDirectory() as folder:
                call([__file__, "--profile", *COMMANDS[name].split()], folder)
        return
    print("| command | first call, s | second, s | difference, s | ratio |")
    print("|---|--:|--:|--:|--:|")
    for name in names or COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            first, second = (
                call(["-m", "optsched", *COMMANDS[name].split()], folder) for _ in "12"
            )
        ratio = first / second
        print(f"| {name} | {first:.1f} | {second:.1f} | {first - second:.1f} | {ratio:.1f} |")


def call(arguments: list[str], folder: str) -> float:
    """Call Python with machine code in a folder of its own; return CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    profile = "--profile" in arguments
    subprocess.run(
        [sys.executable, *arguments, "--quiet"],
        env={**os.environ, "NUMBA_CACHE_DIR": folder},
        check=True,
        stdout=None if profile else subprocess.DEVNULL,
        stderr=None if profile else subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def profile(arguments: list[str]) -> None:
    """Run a command of optsched and print what compilation took, by kernel."""
    from numba.core import event

    from optsched.cli import main as optsched

    own: collections.Counter[str] = collections.Counter()
    libraries: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    stack: list[tuple[str, float, list[float]]] = []  # name, begin, seconds of what it calls

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__name__}"
            stack.append((name, time.process_time(), [0.0]))

        def on_end(self, _: Any) -> None:
            name, begin, (inner,) = stack.pop()
            spent = time.process_time() - begin
            if stack:
                stack[-1][2][0] += spent
            if name.startswith("optsched"):
                own[name] += spent - inner
                times[name] += 1
            else:  # part of numba: the kernel that asked for it pays
                kernel = next((one for one, _, _ in stack[::-1] if one.startswith("optsched")), "")
                libraries[kernel] += spent - inner

    with event.install_listener("numba:compile", Listener()):
        sys.argv = ["optsched", *arguments]
        try:
            optsched()
        except SystemExit as end:
            if end.code:
                raise
    total = own.total() + libraries.total()
    print(f"\n{' '.join(arguments)}: {total:.1f} s\n   own  numba's  times  kernel")
    for name in sorted(own, key=lambda kernel: -own[kernel] - libraries[kernel]):
        print(f"{own[name]:6.2f}  {libraries[name]:7.2f}  {times[name]:5d}  {name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--profile"]:
        profile(sys.argv[2:])
    else:
        main()
