"""Full disks, read-only folders, little memory or time, jumping clocks, a million requests."""

import contextlib
import ctypes
import itertools
import os
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
from tiny_models import market_split

import optsched
from campaign.case import Outcome, one_of, within
from campaign.enumeration import optima
from campaign.kills import _optimum
from campaign.models import draw
from optsched import SolveParams, solve, sweep
from optsched._internal import files
from optsched.cli import main
from optsched.models.program import Stopped

TITLE = "limits"
SECONDS = 120
SWEEP = (
    'seeds = 2\n[[instances]]\nfamily = "uniform"\nn = [5, 8]\n'
    '[[policies]]\nname = ["mc-sf", "area"]\n'
)
TRACE = "family:uniform,n=30"
#: Commands that write, with OUT for where to.
WRITING = (
    ["bound", TRACE, "--json", "OUT"],
    ["bound", TRACE, "--certificate", "OUT"],
    ["compare", TRACE, "--policies", "area,mc-sf", "--json", "OUT"],
    ["compare", TRACE, "--policies", "area,mc-sf", "--html", "OUT"],
    ["compare", TRACE, "--policies", "area,mc-sf", "--schedules", "OUTFOLDER"],
    ["simulate", TRACE, "--policy", "area", "--log", "OUT.csv"],
    ["export", "family:uniform,n=4", "--out", "OUT.lp"],
    ["export", "family:uniform,n=4", "--out", "OUT.mps"],
    ["select", TRACE, "--json", "OUT"],
    ["sweep", "CONFIG", "--out", "OUTFOLDER", "--jobs", "1", "--resume"],
    ["reproduce", "sorted-f-example-1", "--quick", "--jobs", "1", "--out", "OUTFOLDER"],
    ["cluster", TRACE, "--workers", "2", "--slots", "4", "--policies", "fcfs", "--html", "OUT"],
)


def case(seed, folder):
    """Take something away."""
    rng = random.Random(seed)
    return one_of(KINDS, rng, within(SECONDS), rng, folder)


def forked(arguments, prepare, stdout=None):
    """Run the command line in a fork of this process; give its exit code, or signal, and words."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                os.close(read)
                os.dup2(write, 2)
                os.dup2(os.open(stdout or os.devnull, os.O_WRONLY), 1)
                sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                sys.argv = ["optsched", *arguments]
                prepare()
                main()
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with open(read, encoding="utf-8", errors="replace") as pipe:
        words = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), words


def _command(rng, folder):
    config = folder / "sweep.toml"
    config.write_text(SWEEP)
    out = str(folder / "target")
    words = rng.choice(WRITING)
    places = {"OUT": out, "OUTFOLDER": out, "CONFIG": str(config)}
    places |= {f"OUT.{suffix}": f"{out}.{suffix}" for suffix in ("lp", "mps", "csv")}
    return [places.get(word, word) for word in words]


def _check_refusal(code, words, arguments, outcome, allowed=(0, 2)):
    shown = (" ".join(arguments), "gives", code, repr(words[-400:]))
    outcome.check(code in allowed and "Traceback" not in words, *shown)
    if code == 2:
        lines = [line for line in words.split("\n") if line]
        good = bool(lines) and all(line.startswith("optsched: ") for line in lines)
        outcome.check(good, "not a sentence:", *shown)


def _full_disk(rng, folder, outcome):
    """No file may grow beyond some bytes; then there is room, and all goes well.

    On a full disk what is noted of files written finds room in its last block; under this limit
    only if there is little of it.
    """
    with mock.patch.object(files, "_record", return_value=folder / "written"):
        _under_limit(rng, folder, outcome)


def _under_limit(rng, folder, outcome):
    arguments = _command(rng, folder)
    named = [
        Path(path)
        for option, path in itertools.pairwise(arguments)
        if option in ("--json", "--html", "--certificate")
        or (option, arguments[0]) == ("--out", "export")
    ]
    told = []
    for path in named:
        if rng.random() < 0.5:
            path.write_text("before")
            told = ["--overwrite"]
    room = int(10 ** rng.uniform(0, 4.5))
    code, words = forked(
        [*arguments, *told],
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY)),
    )
    outcome.faults += 1
    outcome.note("writes refused", int(code == 2))
    if code == 2:
        for path in named:
            good = not path.exists() or path.read_text() == "before"
            outcome.check(good, "not as before:", path.name, " ".join(arguments))
        drafts = [path.name for path in folder.glob(".*.tmp")]
        outcome.check(not drafts, drafts, "left by", " ".join(arguments))
    _check_refusal(code, words, arguments, outcome)
    if code == 0:  # it has replaced what was there
        told = []
    code, words = forked([*arguments, *told], lambda: None)
    outcome.check(code == 0, "with room again:", " ".join(arguments), code, words[-400:])


def _full_device(rng, folder, outcome):
    """The device that is always full, as a file and as standard output."""
    arguments = [word for word in _command(rng, folder) if word != "--resume"]
    device, stdout = "/dev/full", None
    target = str(folder / "target")
    if rng.random() < 0.4 or not set(arguments) & {"--json", "--html", "--certificate", "--log"}:
        stdout = device
    else:
        named = (target, f"{target}.csv", f"{target}.lp", f"{target}.mps")
        arguments = [device if word in named else word for word in arguments]
    code, words = forked(arguments, lambda: None, stdout)
    outcome.faults += 1
    _check_refusal(code, words, [*arguments, ">", str(stdout)], outcome, allowed=(2,))


def _read_only(rng, folder, outcome):
    """A folder that may not be written to, not even by root."""
    arguments = _command(rng, folder)
    folder.chmod(0o555)
    code, words = forked(arguments, keep_to_permissions)
    folder.chmod(0o755)
    outcome.faults += 1
    _check_refusal(code, words, arguments, outcome, allowed=(2,))


def keep_to_permissions():
    """Drop the capabilities by which root reads and writes whatever the permissions."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) == 0:
        for at in (0, 1):  # effective and permitted
            sets[at] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
        libc.capset(header, sets)


def _little_memory(rng, folder, outcome):
    """An address space that soon ends."""
    n = rng.choice([1_000, 100_000, 1_000_000])
    more = int(10 ** rng.uniform(6, 8.5))
    command = rng.choice([["bound"], ["compare", "--policies", "area"], ["simulate"]])
    arguments = [*command, f"family:uniform,n={n}", "--json", str(folder / "out.json")]
    if command == ["simulate"]:
        arguments += ["--policy", "mc-sf"]

    def limit():
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))

    code, words = forked(arguments, limit)
    outcome.faults += 1
    if code < 0:  # a library that aborts
        outcome.note("ended by the system, not by us")
        return
    outcome.note("out of memory, said in a sentence", int(code == 2))
    _check_refusal(code, words, arguments, outcome)


def _solver_memory(rng, folder, outcome):
    """A solver that may take so much memory and no more."""
    model = market_split(items=12, rows=2, seed=rng.randrange(5))
    limit = int(10 ** rng.uniform(5, 8.3))
    solver = rng.choice(["highs", "cp-sat"])
    solution = solve(
        model, method=solver, time_limit=5, params=SolveParams(memory_limit=limit, in_child=True)
    )
    outcome.faults += 1
    outcome.note(f"memory limit: {solution.status.value}")
    _check_solution(solution, model, outcome)


def _check_solution(solution, model, outcome):
    wanted = _optimum(model)
    if solution.bound is not None:
        outcome.check(solution.bound <= wanted + 1e-6, "bound", wanted, solution)
    if solution.has_answer:
        good = not model.violations(solution.values) and solution.objective >= wanted - 1e-6
        outcome.check(good, "answer", wanted, solution)
    if solution.proven_optimal:
        outcome.check(abs(solution.objective - wanted) < 1e-6, "optimum", wanted, solution)
    outcome.check(solution.status is not Stopped.INFEASIBLE, "infeasible", solution)


def _no_time(rng, folder, outcome):
    """One millisecond for everything."""
    outcome.faults += 1
    instance = draw(np.random.default_rng(rng.randrange(10**9)))
    least = optima(instance)["total-latency"]
    way = rng.choice(["highs", "cp-sat", "auto", "exact", "search", "hindsight", "linear"])
    if way == "linear":
        model = market_split(items=12, rows=2, seed=rng.randrange(5))
        solver = rng.choice(["highs", "cp-sat"])
        solution = solve(
            model, method=solver, time_limit=1e-3, params=SolveParams(in_child=rng.random() < 0.3)
        )
        _check_solution(solution, model, outcome)
        return
    try:
        if way == "hindsight":
            found = solve(instance, time_limit=1e-3)
        else:
            found = solve(instance, method=way, time_limit=1e-3)
    except optsched.errors.SolverError as error:
        outcome.note("no answer within a millisecond, said in a sentence")
        outcome.check("\n" not in str(error), error)
        return
    good = found.bound <= least + 1e-6 and found.objective >= least - 1e-6
    good = good and not found.schedule.check()
    good = good and (not found.proven_optimal or abs(found.objective - least) < 1e-6)
    outcome.check(good, way, least, found, instance.to_json())


def _clock_jumps(rng, folder, outcome):
    """`time.time` jumps back and forth by days; nothing may depend on it."""
    instance = draw(np.random.default_rng(rng.randrange(10**9)))
    config = {
        "instances": [{"family": "uniform", "n": [5, 8]}],
        "policies": [{"name": ["mc-sf", "area"]}],
    }

    def results(name):
        found = solve(instance, time_limit=30)
        rows = sweep(config, folder / name, jobs=1).to_pandas()
        return found.objective, found.bound, found.status, rows.drop(columns="seconds").to_json()

    wanted = results("before")
    now = time.time
    jumping = mock.Mock(side_effect=lambda: now() + rng.choice([-1, 1]) * rng.random() * 1e6)
    with mock.patch("time.time", jumping):
        found = results("jumping")
    outcome.faults += 1
    outcome.check(found == wanted, "differs under a jumping clock:", found, wanted)


def million(seed, folder):
    """Read, compare and bound a trace of a million requests."""
    return large_trace(1_000_000, folder)


def large_trace(count, folder):
    """Read, compare and bound a trace of so many requests; time and memory in the notes."""
    outcome = Outcome(inputs=1)
    rng = np.random.default_rng(count)
    path = folder / "large.csv"
    arrivals = np.sort(rng.integers(0, 40 * count, count))
    prompts, outputs = rng.integers(1, 500, count), rng.integers(1, 300, count)
    rows = np.column_stack([prompts, outputs, arrivals])
    np.savetxt(path, rows, "%d", ",", header="prompt_tokens,output_tokens,arrival", comments="")
    began, cpu = time.perf_counter(), time.process_time()
    instance = optsched.read_trace(path, 16_492)
    outcome.check(np.array_equal(instance.outputs, outputs), "read wrongly")
    comparison = optsched.compare(instance, ["fcfs", "mc-sf", "area"])
    for schedule in comparison.schedules:
        outcome.check(not schedule.check(), schedule.policy, "breaks a rule")
        good = schedule.total_latency >= comparison.bound.value
        outcome.check(good, schedule.policy, "is below the bound")
    outcome.note(f"trace of {count:,}: wall seconds", round(time.perf_counter() - began))
    outcome.note(f"trace of {count:,}: CPU seconds", round(time.process_time() - cpu))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    outcome.note(f"trace of {count:,}: peak MB of the process", peak)
    return outcome


KINDS = {
    _full_disk: 5,
    _full_device: 3,
    _read_only: 3,
    _little_memory: 2,
    _solver_memory: 2,
    _no_time: 6,
    _clock_jumps: 2,
}
