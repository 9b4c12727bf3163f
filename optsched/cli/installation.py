"""Commands that say what there is: policies, families, and whether this installation works."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import optsched
from optsched._internal.extras import EXTRAS
from optsched.cli.common import DONE, NO, Output
from optsched.cli.options import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.instance import Instance

_PACKAGES = ("numpy", "scipy", "numba", "pyomo", "highspy", "ortools")
#: The least total latency of the instance that all solvers get.
OPTIMUM = 25


@command(runs=("policies", "policies --json -"))
def policies(output: Output) -> int:
    """List all policies, with their sources."""
    from optsched.policies import POLICIES

    return _listed(output, POLICIES)


@command(runs=("families", "families --json -"))
def families(output: Output) -> int:
    """List all families of workloads, with their sources."""
    from optsched.workloads import FAMILIES

    return _listed(output, FAMILIES)


def _listed(output: Output, known: Mapping[str, Any]) -> int:
    width = max(map(len, known))
    rows = []
    for name, each in known.items():
        source = f" ({each.source})" if each.source else ""
        output.say(f"{name:{width}}  {each.description}{source}")
        rows.append({"name": name, "description": each.description, "source": each.source})
    output.result(rows)
    return DONE


@command(runs=("doctor --quiet --json -",))
def doctor(output: Output) -> int:
    """Check versions, solvers and speed on this machine."""
    found = []
    with output.progress("looking"):
        for finding in _findings():
            found.append(finding)
            mark = "ok  " if finding.ok else "FAIL"
            output.say(f"{mark}  {finding.name:22} {finding.detail}")
    ok = all(finding.ok for finding in found)
    output.result({"ok": ok, "findings": [asdict(finding) for finding in found]})
    return DONE if ok else NO


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def _findings() -> Iterator[Finding]:
    """Look at versions, solvers and speeds, one after the other."""
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
    from optsched._internal.numbers import at_least

    instance = optsched.family("exponential", n=50, seed=1)
    proven = optsched.bound(instance, "lagrangian")
    assert proven.certificate is not None
    if optsched.verify(proven.certificate, instance) < proven.value:
        raise ArithmeticError("the certificate proves less than was claimed; please report this")
    return f"{at_least(proven.value)} proven and checked in exact integers"


def _solved(problem: Any, method: str, *, in_child: bool = False) -> str:
    # Ten minutes, since the first time it is compiled.
    params = optsched.SolveParams(in_child=in_child)
    found = optsched.solve(problem, method=method, time_limit=600, params=params)
    if found.objective is None or abs(found.objective - OPTIMUM) > 1e-6:
        raise ArithmeticError(
            f"the optimum is {OPTIMUM}, but it says {found.objective}; do not trust this solver's "
            "version"
        )
    return f"right optimum in {found.seconds:.2f} s"
