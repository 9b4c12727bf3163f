"""Kernels that tests need, compiled before these start."""

import contextlib
import io
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from installed import SERVING

from optsched.cli import main

_CLOCK = "--clock llama-2-70b-2xa100"

#: What takes longest to compile comes first.
_COMMANDS = f"""
cluster family:chat,n=30,rate=20 --workers 4 --slots 16 --policies bf-io --lookahead 2
solve family:uniform,n=40,seed=1,load=1.1 --method search --work .2
route family:chat-and-summaries,n=30 --workers 2 --policies area --time-limit 1
simulate family:uniform,n=30,rate=3 --policy work-chance {_CLOCK} --intervals relative:0.5
simulate family:uniform,n=30 --policy area-chance --intervals relative:0.5
solve family:uniform,n=20,seed=1 --workers 2 --method search --work .1
solve family:uniform,n=9,seed=1,load=1.1 --objective makespan --method search --work .1
rolling family:uniform,n=20,seed=1 --planner beam
bound family:uniform,n=30,seed=1,load=1.1 --method sawtooth
bound family:uniform,n=30,rate=3 {_CLOCK}
simulate family:uniform,n=30,rate=3 --policy wait {_CLOCK}
simulate family:uniform,n=30,rate=3 --policy area {_CLOCK}
compare family:uniform,n=30 --policies fcfs,mc-sf,area,sorted-f,alpha-beta-clearing
compare family:uniform,n=30 --policies a-min,a-max --intervals relative:0.5
compare family:uniform,n=30 --policies area --rule backfill
select family:uniform,n=12 --method scaled-dp
""".strip().splitlines()
if SERVING:
    _COMMANDS.insert(0, f"simulate family:chat,n=50,rate=3 --policy vllm {_CLOCK}")


def compile_all() -> None:
    """Run what needs them, in a process for each core; what is kept on disk is only loaded."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        codes = dict(zip(_COMMANDS, processes.map(_call, _COMMANDS), strict=True))
    assert not any(codes.values()), codes


def _call(line: str) -> object:
    """Run a command, and return its exit code."""
    sys.argv = ["optsched", *line.split(), "--quiet"]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as stop:
            return stop.code
