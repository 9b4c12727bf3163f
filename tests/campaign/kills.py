"""Processes killed at random moments: nothing that was finished is lost or wrong."""

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pandas as pd
from tiny_models import market_split

import optsched
from campaign.case import one_of
from optsched import SolveParams, family, read_sweep, solve, sweep
from optsched.solvers import prepare

TITLE = "kills"
SECONDS = 180
SWEEP = {
    "seeds": 3,
    "bound": True,
    "instances": [{"family": "chat-and-summaries", "n": [300, 1500], "load": 0.95}],
    "policies": [{"name": ["sorted-f", "area", "mc-sf"], "rule": ["prefix", "skip"]}],
}
TOML = (
    "seeds = 3\nbound = true\n[[instances]]\nfamily = 'chat-and-summaries'\nn = [300, 1500]\n"
    "load = 0.95\n[[policies]]\nname = ['sorted-f', 'area', 'mc-sf']\nrule = ['prefix', 'skip']\n"
)
TARGETS = ("robust-theorem-5-1", "sorted-f-table-ec-1")
#: Every row is written at once, so that there is always something to lose.
EAGER = (
    "import optsched.cli, optsched.experiments.sweep as f; f.FLUSH_EVERY = 0; optsched.cli.main()"
)


def case(seed, folder):
    """Kill something."""
    rng = random.Random(seed)
    return one_of(KINDS, rng, contextlib.nullcontext(), rng, folder)


@contextlib.contextmanager
def killer(rng, latest, chosen):
    """Kill one of the processes that descend from this one, at a random moment; yield its number.

    `chosen` says of a process, by its number, parent and command line, whether it may be.
    """
    killed, over = [], threading.Event()
    moment = rng.random() * latest

    def kill():
        if over.wait(moment):
            return
        while not over.is_set() and not killed:
            with contextlib.suppress(OSError):
                parents = descendants()
                found = [pid for pid, parent in parents.items() if chosen(parent, _words(pid))]
                if found:
                    victim = rng.choice(found)
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
            over.wait(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
        # On a busy machine a process takes a while to die, and till then it may be sent a job.
        while killed and _is_alive(killed[0]):
            time.sleep(0.002)


def _is_alive(pid):
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return words.rpartition(")")[2].split()[0] != "Z"


def descendants():
    """Return the parent of each process that descends from this one."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    found, grown = set(), {os.getpid()}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - found
        found |= grown
    return {pid: parents[pid] for pid in found}


def _words(pid):
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")


def _is_solver(parent, words):
    return "serve_jobs(" in words


def _is_worker(parent, words):
    return "serve_cells" in words


def _solver_child(rng, folder, outcome):
    """A model that is never proven: the answer and the bound so far must hold."""
    prepare()
    model = market_split(items=12, rows=2, seed=rng.randrange(5))
    wanted = _optimum(model)
    with killer(rng, 0.4, _is_solver) as killed:
        solver = rng.choice(["highs", "cp-sat"])
        solution = solve(model, method=solver, time_limit=20, params=SolveParams(in_child=True))
    outcome.faults += bool(killed)
    shown = (solver, solution)
    if solution.bound is not None:
        outcome.check(solution.bound <= wanted + 1e-6, "bound above", wanted, *shown)
    if solution.has_answer:
        broken = model.violations(solution.values)
        outcome.check(not broken and solution.objective >= wanted - 1e-6, wanted, broken, *shown)
    outcome.check(solution.status.value != "infeasible", "called infeasible", *shown)
    again = solve(model, method=solver, params=SolveParams(in_child=True))
    good = again.proven_optimal and abs(again.objective - wanted) < 1e-6
    outcome.check(good, "the next solve:", again)


@functools.cache
def _optimal_values():
    return {}


def _optimum(model):
    """Return the optimum by SciPy, once for each model."""
    import brute_force

    key = model.matrix.toarray().tobytes() if hasattr(model.matrix, "toarray") else model.name
    if key not in _optimal_values():
        _optimal_values()[key] = brute_force.optimum(model)
    return _optimal_values()[key]


def _exact_solve(rng, folder, outcome):
    """`solve` whose solvers are killed again and again: a valid interval all the same."""
    instance = family("uniform", n=rng.choice([7, 8]), seed=rng.randrange(4))
    wanted = _cost(instance)
    method = rng.choice(["auto", "highs", "cp-sat", "exact"])
    with killer(rng, 0.5, _is_solver) as killed:
        try:
            found = solve(instance, method=method, time_limit=10)
        except optsched.errors.SolverError as error:
            outcome.note("solve says that its solver died")
            outcome.check("\n" not in str(error), error)
            found = None
    outcome.faults += bool(killed)
    if found is not None:
        good = found.bound <= wanted + 1e-6 and found.objective >= wanted - 1e-6
        outcome.check(good and not found.schedule.check(), method, wanted, found)


@functools.cache
def _costs():
    return {}


def _cost(instance):
    if instance.fingerprint not in _costs():
        found = solve(instance, time_limit=100)
        assert found.proven_optimal, found
        _costs()[instance.fingerprint] = found.objective
    return _costs()[instance.fingerprint]


@functools.cache
def undisturbed():
    """Return the rows of the sweep without any fault."""
    with tempfile.TemporaryDirectory() as folder:
        return _rows(sweep(SWEEP, folder, jobs=1).to_pandas())


def _rows(frame):
    frame = frame.drop(columns=["seconds", "name"], errors="ignore")
    return frame.sort_values("key", ignore_index=True)


def _compare_rows(frame, outcome):
    try:
        pd.testing.assert_frame_equal(_rows(frame), undisturbed(), check_like=True)
    except AssertionError as error:
        outcome.check(False, "results differ:", error)


def _sweep_worker(rng, folder, outcome):
    """A worker of a sweep: its run is done again."""
    undisturbed()
    with killer(rng, 1.5, _is_worker) as killed:
        result = sweep(SWEEP, folder / "out", jobs=2)
    outcome.faults += bool(killed)
    outcome.check((result.status, result.failed) == ("complete", 0), result)
    _compare_rows(result.to_pandas(), outcome)


def _sweep_main(rng, folder, outcome):
    """The main process of a sweep, killed or interrupted up to three times, then resumed."""
    undisturbed()
    config, out = folder / "sweep.toml", folder / "out"
    config.write_text(TOML)
    command = [sys.executable, "-c", EAGER, "sweep", str(config), "--out", str(out)]
    command += ["--jobs", rng.choice(["1", "2"]), "--resume"]
    kept = {}
    for _ in range(rng.randrange(1, 4)):
        part = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
        ended = _disturb(command, part, rng, lambda: list(out.glob("*.parquet")))
        outcome.faults += ended is not None
        if ended is not None and part == signal.SIGINT:
            _check_interrupt(ended, outcome)
        if (out / "_sweep.json").exists():
            rows = read_sweep(out)
            now = dict(zip(rows["key"], rows.get("total_latency", []), strict=False))
            lost = set(kept) - set(now)
            outcome.check(not lost, "lost", len(lost), "of", len(kept))
            kept = now
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    outcome.check(done.returncode == 0, "resume:", done.returncode, done.stderr)
    _compare_rows(read_sweep(out), outcome)


def _check_interrupt(ended, outcome):
    code, error = ended
    starting = code == 1 and "in main" not in error  # it imports, and our code does not run yet
    good = starting or code in (130, 0, -signal.SIGINT)
    outcome.check(good, "Ctrl-C gives exit code", code, error[-300:])
    if code == -signal.SIGINT or "Traceback" in error:
        outcome.note("Ctrl-C while Python itself starts or ends")
        ours = "optsched" in error and "import" not in error
        outcome.check(not ours, "Ctrl-C gives a traceback:", error[-500:])


def _disturb(command, number, rng, begun):
    """Start a command and send it a signal; its exit code and words, or None if it was done."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    limit = time.monotonic() + SECONDS
    while rng.random() < 0.995 and process.poll() is None and not begun():
        time.sleep(0.02)
        if time.monotonic() > limit:
            break
    time.sleep(rng.random() ** 2)
    ended = process.poll() is not None
    if not ended:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.kill()
    try:
        error = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:  # workers that are still there hold the pipe
        error = ""
        if process.poll() is None:
            process.kill()
            process.wait()
    return None if ended else (process.returncode, error)


@functools.cache
def _reproduced(target):
    from optsched_papers import reproduce_into  # of another distribution

    with tempfile.TemporaryDirectory() as folder:
        reproduce_into([target], folder, quick=True, jobs=1)
        return _claims(Path(folder), target)


def _claims(folder, target):
    content = json.loads((folder / f"{target}.json").read_text())
    return (
        {key: content[key] for key in ("verdict", "rows", "settings", "quick", "seed")},
        (folder / f"{target}.csv").read_text(),
    )


def _check_reproduced(out, targets, outcome):
    for target in targets:
        same = _claims(out, target) == _reproduced(target)
        outcome.check(same, target, "differs from an undisturbed run")
    outcome.check((out / "index.html").exists(), "no page")


def _reproduce_main(rng, folder, outcome):
    """The main process of `reproduce`, killed or interrupted up to three times, then resumed."""
    targets = rng.choice([TARGETS[:1], TARGETS[1:], TARGETS])
    out, kept = folder / "out", set()
    command = [sys.executable, "-m", "optsched", "reproduce", *targets, "--quick"]
    command += ["--out", str(out), "--jobs", rng.choice(["1", "2"])]
    last = targets[-1]  # a kill may come between two targets
    for _ in range(rng.randrange(1, 4)):
        number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
        ended = _disturb(command, number, rng, lambda: list(out.glob(f"_cells/{last}/*.json")))
        outcome.faults += ended is not None
        if ended is not None and number == signal.SIGINT:
            _check_interrupt(ended, outcome)
        cells = set(out.glob("_cells/*/*.json"))
        for cell in cells:
            json.loads(cell.read_text())  # whole, or not there
        outcome.check(kept <= cells, "lost", len(kept - cells), "of", len(kept), "cells")
        kept = cells
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    outcome.check(done.returncode in (0, 1), "again:", done.returncode, done.stderr)
    _check_reproduced(out, targets, outcome)


def _reproduce_worker(rng, folder, outcome):
    """A worker of `reproduce`: its cell is done again."""
    target = rng.choice(TARGETS)
    from optsched_papers import reproduce_into  # of another distribution

    _reproduced(target)
    with killer(rng, 1.5, _is_worker) as killed:
        reproduce_into([target], folder / "out", quick=True, jobs=2)
    outcome.faults += bool(killed)
    _check_reproduced(folder / "out", [target], outcome)


def _named_file(rng, folder, outcome):
    """The main process while it writes the file that it was asked for: whole, or as before.

    What was there before is not optsched's, but what it wrote is, also if it was killed just then.
    """
    option, path = rng.choice(["--html", "--json"]), folder / "named"
    path.write_text("before")
    command = [sys.executable, "-m", "optsched", "compare", "family:uniform,n=30"]
    command += ["--policies", "area,mc-sf", option, str(path)]
    told = [*command, "--overwrite"]
    process = subprocess.Popen(told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + SECONDS
    while process.poll() is None and not list(folder.glob(".named.*")):
        time.sleep(1e-4)
        if time.monotonic() > limit:
            break
    time.sleep(0.01 * rng.random())
    outcome.faults += process.poll() is None
    process.kill()
    process.wait()
    content = path.read_text()
    outcome.note("files as before", int(content == "before"))
    if content != "before":
        whole = content.rstrip().endswith("</html>" if option == "--html" else "}")
        outcome.check(whole, "a part of a file:", option, content[-200:])
    again = told if content == "before" else command
    done = subprocess.run(again, capture_output=True, text=True, timeout=SECONDS)
    good = done.returncode == 0 and path.read_text() != "before"
    outcome.check(good, "again:", done.returncode, done.stderr)


KINDS = {
    _solver_child: 8,
    _exact_solve: 8,
    _sweep_worker: 2,
    _sweep_main: 3,
    _reproduce_main: 2,
    _reproduce_worker: 2,
    _named_file: 3,
}
