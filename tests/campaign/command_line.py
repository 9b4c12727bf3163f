"""The command line with random options: four exit codes, one sentence, no traceback."""

import contextlib
import functools
import io
import itertools
import json
import os
import random
import re
import sys
import warnings

import click
from all_commands import COMMANDS

import campaign.case
from campaign import readers
from campaign.case import Outcome, address_space, within
from campaign.corpus import corpus
from optsched.cli import main

TITLE = "command line"
SECONDS = 20  # then as if Ctrl-C had been pressed
GIGABYTES = 6

#: Of values that may stand for any number, those that end soon.
INTEGERS = [
    "1", "2", "3", "5", "7", "20", "0", "-1", "-5", "1.5", "x", "nan", "1e3",
    "99999999999999999999", "9223372036854775807",
]  # fmt: skip
FLOATS = [
    "0.5", "1", "0.01", "2", "0", "10", "1e-9", "1e-300", "-1", "nan", "inf", "-inf", "1e308",
    "1e309", "x", "1_0", "٣",
]  # fmt: skip
SECONDS_OF_SOLVERS = ["0.3", "0.1", "0.01", "0.001", "1", "0", "-1", "nan", "inf", "1e-300", "x"]
TEXTS = [
    "", " ", "x", "family:", "-", "--", ",", "area,", "0", "nan", "é\u202e", "\udc80", "a" * 300,
]  # fmt: skip

#: Values of options by name, valid ones first; others go by type.
VALUES = {
    "memory": ["16492", "30", "64", "1000", "1", "0", "-1", "x", "99999999999", "40,50", "1e9"],
    "limit": ["1", "3", "10", "0", "-1", "x"],
    "seconds_per_step": ["0.05", "1", "1e-6", "0", "-1", "nan", "inf", "1e-320", "1e300"],
    "time_limit": SECONDS_OF_SOLVERS,
    "budget": SECONDS_OF_SOLVERS,
    "threads": ["1", "2", "0", "-1", "x"],
    "policies": [
        "fcfs", "mc-sf,area", "area", "mc-sf,mc-sf", "sorted-f", "sorted-f-dp", "sorted-lp",
        "lp-swap", "a-max", "a-min", "a-l,a-min", "h-sf", "alpha-greedy:0.2", "alpha-greedy:x",
        "alpha-beta-clearing:0.1,0.2", "alpha-beta-clearing:2,-1", "aera", "area+skip",
        "area+backfill", "area+what", "vllm", "sarathi,mixed", "wait", "nested-wait", "rolling",
        "lpt", "jsq,lpt", "bf-io", "round-robin", "power-of-d", "power-of-2", "", ",", "area,,fcfs",
    ],
    "intervals": [
        "exact", "common:1,60", "common:60,1", "common:1", "classes:10", "classes:0",
        "relative:0.5", "relative:-1", "relative:nan", "relative:1e309", "column", "x", "classes:",
    ],
    "clock": [
        "unit", "affine:0.01,0.0001", "affine:0,0", "affine:-1,1", "affine:nan,1", "affine:1",
        "affine:1e308,1e308", "llama-2-70b-2xa100", "llama-2-7b-a100", "x",
    ],
    "objective": ["total-latency", "weighted-latency", "makespan", "memory", "slack", "latency"],
    "lateness": ["forbidden", "per-step", "per-request", "x"],
    "fit": ["peak", "profile", "x"],
    "slots": ["2", "4", "1", "0", "-1", "1,2", "x", "100000000000"],
    "workers": ["1", "1", "1", "0", "-1", "x"],
    "jobs": ["1", "1", "1", "0", "-1", "x"],
    "horizons": ["20", "20,40", "0", "x", "-5"],
    "loads": ["0.9", "0.5,1.1", "0", "-1", "nan", "x", "1e309"],
    "model": ["hindsight", "beam", "relaxation", "balance", "batch", "x"],
    "rule": ["prefix", "skip", "backfill", "window", "window:1.4,64", "x"],
    "horizon": ["20", "60", "1", "0", "-3", "x", "400"],
    "lookahead": ["0", "2", "5", "auto", "-1", "x", "adaptive"],
    "drift": ["0", "1", "-1", "0.5", "x", "nan"],
    "slowness": ["1", "1,2", "0", "-1", "x", "nan"],
    "thresholds": ["11,11", "1,1", "0,0", "-1,2", "x", "5"],
    "segments": ["auto", "1", "2", "10,20", "20,10", "0", "x"],
    "size": ["2", "1", "0", "-1", "x"],
    "steps": ["20", "100", "0", "-1", "x"],
    "warm_up": ["0", "5", "-1", "nan", "x", "1e309"],
    "seeds": ["1", "2", "0", "-1", "x"],
    "scenarios": ["1", "2", "0", "-1", "x"],
    "window": ["4", "8", "1", "0", "-1", "x"],
    "replan_interval": ["1", "5", "0", "-1", "x"],
    "iterations": ["10", "1", "0", "-1", "x"],
    "classes": ["1", "2", "0", "-1", "100", "x"],
    "executor": ["local", "local", "dask", "x"],
    "address": ["tcp://127.0.0.1:1", "nonsense", ""],
    "epsilon": FLOATS,
    "names": ["sorted-f-example-1", "robust-theorem-5-1", "robust-fig-x", ""],
}  # fmt: skip
METHODS = {
    "solve": ["auto", "highs", "cp-sat", "exact", "search", "x"],
    "select": ["auto", "dp", "scaled-dp", "swap", "quantile", "highs", "cp-sat", "x"],
}
FAMILIES = [
    "uniform,n=6", "uniform,n=12,seed=3", "chat-and-summaries,n=10", "sorted-f-example-1",
    "lognormal,n=8", "chat-and-summaries,n=8,rate=1", "uniform,n=5,load=0.9", "uniform,n=0",
    "uniform,n=x", "uniform,m=3", "unifrom", "", "uniform,n=5,n=6", "uniform,memory=1,n=4",
    "uniform,n=4,seed=-1", "uniform,n=4,load=nan", "uniform,n=4,load=-1", "uniform,,", "uniform,n",
]  # fmt: skip


#: Commands that compile what takes longest; the first ones those that most cases need.
_COMPILING = [
    line.split()
    for line in (
        "cluster --workers 2 --slots 2 --policies bf-io --steps 20",
        "compare --policies a-max,a-min --intervals classes:2",
        "compare --policies fcfs,mixed --clock unit",
        "solve --method search --time-limit 1",
        "cluster --workers 2 --slots 2 --policies fcfs,jsq,round-robin,power-of-d --steps 20",
        "compare --policies vllm,sarathi --clock affine:0.01,0.0001",
        "compare --policies sorted-f,sorted-f-dp,sorted-lp,lp-swap,area+skip,area+backfill",
        "compare --policies a-l,h-sf,alpha-greedy:0.2 --intervals relative:0.5",
        "solve --method exact --time-limit 1",
        "rolling --budget 1",
        "rolling --scenarios 2 --intervals classes:10",
        "select --method scaled-dp",
        "select --method quantile",
        "bound",
    )
]


def _compile(arguments):
    code, _, err, error = run([*arguments, "family:uniform,n=12"], seconds=3600)
    assert (code, error) == (0, None), err


WARM = tuple(functools.partial(_compile, arguments) for arguments in _COMPILING)


@functools.cache
def compile_kernels():
    """Compile what the clock of a case would cut off again and again."""
    if not campaign.case.COMPILED:
        for each in WARM[:4]:
            each()


@functools.cache
def files():
    """Return the valid files, in a fixed order."""
    return sorted(corpus().items())


def case(seed, folder):
    """Run one random command line in this process, and again without options that do not count."""
    compile_kernels()
    rng = random.Random(seed)
    command = rng.choice(sorted(set(COMMANDS) - {"doctor"}))
    arguments = [command, *_arguments(command, rng, folder)]
    if rng.random() < 0.03:
        arguments = rng.choice([["-h"], ["--version"], [], ["x"], [command, "--help"], ["--x"]])
    outcome = Outcome()
    while arguments is not None:
        code, out, err, error = run(arguments)
        outcome.inputs += 1
        outcome.note(f"exit code {code}")
        shown = " ".join(map(repr, arguments))
        outcome.check(error is None, f"{type(error).__name__}: {error};", shown)
        if error is None:
            check(arguments, code, out, err, shown, outcome)
        fewer = _following(arguments, err) if code == 2 else None
        outcome.check(fewer != arguments, "a hint that leads nowhere;", err, shown)
        arguments = None if fewer == arguments else fewer
    return outcome


def _following(arguments, err):
    """Leave the options out that a sentence says to leave out; None if it names none."""
    hint = re.search(r"leave (--[\w-]+(?: and --[\w-]+)*) out\n", err)
    if hint is None:
        return None
    named, left, words = hint[1].split(" and "), [], iter(arguments)
    options = {
        name: each
        for each in COMMANDS[arguments[0]].params
        for name in (*each.opts, *each.secondary_opts)
    }
    for word in words:
        option = options.get(word)
        if isinstance(option, click.Option) and option.opts[-1] in named:
            if not option.is_flag:
                next(words)
        else:
            left.append(word)
    return left


def check(arguments, code, out, err, shown, outcome):
    """Look at exit code, standard output and standard error."""
    outcome.check(code in (0, 1, 2, 130), f"exit code {code};", shown)
    lines = err.splitlines()
    # After Ctrl-C on a terminal what comes next begins on a line of its own.
    told = f"\n{err}".replace("\n\n", "\n", 1)[1:] if code == 130 else err
    told = all(line.startswith("optsched: ") for line in told.split("\n")[:-1])
    outcome.check(told, "standard error:", repr(err[:300]), shown)
    if code == 2:
        outcome.check(bool(lines), "no sentence;", shown)
        if "--quiet" in arguments:
            outcome.check(err.count("\n") == 1, "not one sentence:", repr(err[:300]), shown)
    asks = [b for a, b in itertools.pairwise(arguments) if a == "--json"]
    if code in (0, 1) and asks and asks[-1] == "-" and not {"-h", "--help"} & set(arguments):
        try:
            json.loads(out, parse_constant=_not_json)
        except ValueError as reason:
            outcome.check(False, f"JSON: {reason};", repr(out[:100]), shown)


def _not_json(constant):
    raise ValueError(f"{constant} is no JSON")


def run(arguments, seconds=SECONDS):
    """Return exit code, standard output, standard error and what was raised beside SystemExit."""
    out, err = io.StringIO(), io.StringIO()
    before, here = sys.argv, os.getcwd()
    sys.argv = ["optsched", *arguments]
    code = error = None
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            address_space(GIGABYTES),
            within(seconds, KeyboardInterrupt),
        ):
            warnings.simplefilter("error")
            main()
    except SystemExit as stop:
        code = stop.code
    except BaseException as reason:
        error = reason
    finally:
        sys.argv = before
        os.chdir(here)
    return code, out.getvalue(), err.getvalue(), error


def _arguments(command, rng, folder):
    words = []
    wild = rng.random() < 0.4
    for parameter in COMMANDS[command].params:
        needed = parameter.required or parameter.name in ("memory", "time_limit", "budget")
        if isinstance(parameter, click.Argument):
            if not wild or rng.random() < 0.95:
                words.append(_argument(command, parameter, rng, folder, wild))
        elif rng.random() < (0.8 if needed else 0.2):
            words.append(parameter.opts[0])
            if not parameter.is_flag:
                words.append(_value(command, parameter, rng, folder, wild))
    if command in ("reproduce", "sweep", "regret") and "--jobs" not in words:
        words += ["--jobs", "1"]
    if command == "reproduce":
        words.append("--quick")
    if command == "regret":
        words += ["--horizons", "20", "--seeds", "1", "--time-limit", "0.2"]
    return words


def _early(values, rng, wild):
    """Choose any value, or where the command line is not to be wild one of the first."""
    return rng.choice(values) if wild else values[int(len(values) * rng.random() ** 3 * 0.9)]


def _argument(command, parameter, rng, folder, wild):
    name = parameter.name
    if name in ("trace", "source", "types") and rng.random() < 0.5:
        return "family:" + _early(FAMILIES, rng, wild)
    if name == "names":
        return _early(VALUES["names"], rng, wild)
    kinds = {"types": "types", "config": "sweep", "file": rng.choice(["schedule", "certificate"])}
    kind = kinds.get(name, "trace")
    if wild and rng.random() < 0.1:
        return rng.choice([*TEXTS, str(folder), "/dev/null", "/proc/self/mem"])
    (_, which), text = rng.choice([file for file in files() if file[0][0] == kind])
    content = text.encode()
    if wild and rng.random() < 0.3:
        content = readers.mutated(text, rng, [other for _, other in files()])
    suffix = ".toml" if kind in ("types", "sweep") else ".json" if which == "json" else ".csv"
    path = folder / f"{name}-{which}{suffix}"
    path.write_bytes(content)
    return str(path)


def _value(command, parameter, rng, folder, wild):
    name = parameter.name
    if name == "json_path":
        return _early(["-", "-", f"{folder}/o.json", str(folder), "/none/o.json"], rng, wild)
    if name in ("html", "log", "certificate", "out", "export", "schedules", "keep_instances"):
        endings = {"html": ".html", "out": ".lp", "export": ".lp"}
        ending = "" if command == "sweep" else endings.get(name, ".json")
        places = 3 * [folder / f"{name}{ending}"] + [folder, "/none/x", ""]
        return str(_early(places, rng, wild))
    if name == "policy":
        return _early(VALUES["policies"], rng, wild)
    if name == "method" and command in METHODS:
        return _early(METHODS[command], rng, wild)
    if name in VALUES:
        return _early(VALUES[name], rng, wild)
    if isinstance(parameter.type, click.Choice):
        return _early([*parameter.type.choices, "x"], rng, wild)
    if parameter.type.name == "integer":
        return _early(INTEGERS, rng, wild)
    return _early(FLOATS if parameter.type.name == "float" else TEXTS, rng, wild)
