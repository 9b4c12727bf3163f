"""Commands that say what there is: policies, families, and whether this installation works."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import optsched
from optsched._internal.imports import EXTRAS
from optsched._internal.numbers import at_least, proven
from optsched.cli import options as cli
from optsched.cli.options import Options, Output, command, option, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched import Instance, LinearModel
    from optsched.experiments.records import Record
    from optsched.policies import Policy
    from optsched.workloads import WorkloadFamily

_PACKAGES = ("numpy", "scipy", "numba", "pyomo", "highspy", "ortools")
#: The least total latency of the instance that all solvers get.
OPTIMUM = 25
_ROUNDING = 1e-9  # relative, by which times on a clock have to differ


@command(runs=("policies", "policies --json -"))
def policies(output: Output, _: Options) -> int:
    """List all policies, with their sources."""
    return _listed(output, optsched.POLICIES)


@command(runs=("families", "families --json -"))
def families(output: Output, _: Options) -> int:
    """List all families of workloads, with their sources."""
    return _listed(output, optsched.workloads.FAMILIES)


def _listed(output: Output, known: Mapping[str, Policy | WorkloadFamily]) -> int:
    width = max(map(len, known))
    rows = []
    for name, each in known.items():
        source = f" ({each.source})" if each.source else ""
        memory = getattr(each, "memory", None)  # of a family, where none is given
        held = "" if memory is None else f"; M = {memory:,}"
        output.say(f"{name:{width}}  {each.description}{source}{held}")
        row = {"name": name, "description": each.description, "source": each.source}
        rows.append(row if memory is None else row | {"memory": memory})
    output.result(rows)
    return cli.DONE


@command(
    click.Argument(["name"], required=False),
    option("--trace FILE", str, "File of the public trace of which NAME is made, if it is."),
    option("--csv FILE", cli.FILE, "Write its requests, as a trace.", needs="no --submit"),
    option("--schedule FILE", cli.FILE, "Write its best known schedule.", needs="no --submit"),
    option("--certificate FILE", cli.FILE, "Write its proof of the bound.", needs="no --submit"),
    option("--submit FILE", str, "Verify a schedule or a certificate that may be better."),
    runs=("library", "library uniform-8 --csv u8.csv --schedule u8.json"),
)
def library(output: Output, given: Options) -> int:
    """List instances with the best that is known of them.

    With NAME write its requests, schedule and proof, or verify what may be better.
    """
    records = optsched.library()
    name, trace, submit = take(given, "name trace submit").values()
    cli.only_for("trace csv schedule certificate submit", name is not None, "with NAME", "pass one")
    if name is None:
        for each in records.values():
            output.say(
                f"{each.name:36} {each.objective:>17,.10g} {proven(each.bound, digits=10):>17} "
                f"{each.standing:>8}  {each.schedule_by.method}"
            )
        output.result([each.to_dict() for each in records.values()])
        return cli.DONE
    record = records[name]
    if submit is not None:
        return _judge(record, *record.verified(Path(submit), record.instance(trace)), output)
    output.say(str(record))
    if trace or any(given.values()):
        instance = record.instance(trace)
        csv, schedule, certificate = take(given, "csv schedule certificate").values()
        if csv is not None:
            instance.to_csv(csv)
        if schedule is not None:
            record.schedule(instance).to_json(schedule)
        if certificate is not None:
            record.certificate.to_json(certificate)
    output.result(record.to_dict())
    return cli.DONE


def _judge(record: Record, kind: str, value: float, output: Output) -> int:
    known, changes = getattr(record, kind), Options({kind: value})
    found = replace(record, **changes)
    gain = (known - value) / known * (1 if kind == "objective" else -1)
    better = gain > (_ROUNDING if record.clock else 0)
    verdict = f"{gain:.2%} better than" if better else "no better than"
    output.say(
        f"{record.name}: {kind} {value:,.10g} is verified, and {verdict} {known:,.10g}; gap "
        f"{found.standing}, known {record.standing}"
    )
    output.result({**changes, "known": known, "better": better, "gain": gain, "gap": found.gap})
    return cli.DONE if better else cli.NO


@command(runs=("doctor --quiet --json -",))
def doctor(output: Output, _: Options) -> int:
    """Check versions, solvers and speed on this machine."""
    found = []
    with output.progress("looking"):
        for finding in _findings():
            found.append(finding)
            mark = "ok  " if finding.ok else "FAIL"
            output.say(f"{mark}  {finding.name:22} {finding.detail}")
    ok = all(finding.ok for finding in found)
    output.result({"ok": ok, "findings": [asdict(finding) for finding in found]})
    return cli.DONE if ok else cli.NO


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def _findings() -> Iterator[Finding]:
    yield Finding("machine", True, f"{platform.platform()}, {os.cpu_count()} cores")
    yield Finding("python", sys.version_info >= (3, 11), platform.python_version())
    for name in (*_PACKAGES, *EXTRAS):
        yield package(name)
    model = optsched.HindsightProgram(small()).to_linear()
    for name, check in (
        ("kernels", _kernels),
        ("bound and certificate", _certificate),
        ("HiGHS", lambda: _solved(model, "highs")),
        ("CP-SAT", lambda: _solved(model, "cp-sat")),
        ("branch and bound", lambda: _solved(small(), "exact")),
        ("child process", lambda: _solved(model, "highs", in_child=True)),
    ):
        yield _tried(name, check)


def package(name: str) -> Finding:
    """Look for an installed package."""
    import importlib.metadata

    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        hint = (
            f"it comes with the extra {EXTRAS[name]!r}" if name in EXTRAS else f"pip install {name}"
        )
        return Finding(name, name in EXTRAS, f"not installed; {hint}")


def _tried(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except Exception as error:  # whatever it is, it is reported here
        return Finding(name, False, f"{type(error).__name__}: {' '.join(str(error).split())}")


def small() -> Instance:
    """Return five requests whose optimum is known."""
    return optsched.Instance([4, 4, 4, 4, 2], [1, 1, 6, 6, 3], memory=13)


def _kernels() -> str:
    began = time.perf_counter()
    optsched.run(small(), "area")
    loading = time.perf_counter() - began
    instance = optsched.family("chat-and-summaries", n=2000, seed=1)
    began = time.perf_counter()
    optsched.run(instance, "area")
    milliseconds = 1000 * (time.perf_counter() - began)
    return f"loaded in {loading:.1f} s; admission of 2,000 requests {milliseconds:.1f} ms"


def _certificate() -> str:
    instance = optsched.family("exponential", n=50, seed=1)
    proven = optsched.bound(instance, "lagrangian")
    assert proven.certificate is not None
    if optsched.verify(proven.certificate, instance) < proven.value:
        raise ArithmeticError("the certificate proves less than was claimed; please report this")
    return f"{at_least(proven.value)} proven and checked in exact integers"


def _solved(problem: LinearModel | Instance, method: str, *, in_child: bool = False) -> str:
    # Ten minutes, since the first time it is compiled.
    params = optsched.SolveParams(in_child=in_child)
    found = optsched.solve(problem, method=method, time_limit=600, params=params)
    if found.objective is None or abs(found.objective - OPTIMUM) > 1e-6:
        raise ArithmeticError(
            f"the optimum is {OPTIMUM}, but it says {found.objective}; do not trust this solver's "
            "version"
        )
    return f"right optimum in {found.seconds:.2f} s"
