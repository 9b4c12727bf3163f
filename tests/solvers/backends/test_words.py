"""What every solver says through every door is right: its proofs, its points, and when it has none.

    python tests/solvers/backends/test_words.py [COUNT] [SEED] [DOOR or KIND ...]

tries so many models of each kind and prints what came of them; tests/campaign/README.md keeps it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import highspy
import numpy as np
import pytest
from effort import share
from tiny_models import market_split

from optsched import LinearModel, write_model
from optsched.errors import SolverError
from optsched.models import Family, Rows, Variables
from optsched.models.program import Stopped
from optsched.solvers import read_solution
from optsched.solvers.backends import driver, pyomo
from optsched.solvers.backends.base import Options

LIMITS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # seconds
ENOUGH = 5.0  # seconds for other models: rays of whole numbers keep GLPK and SCIP for ever
PROGRAMS = {"cbc": "cbc", "glpk": "glpsol"}


class Case(NamedTuple):
    """A model, and what is true of it: the cost of the best point, or why there is none."""

    model: LinearModel
    truth: Fraction | Stopped
    limit: float | None = None


def tiny(rng, columns=None, rows=None, continuous=True):
    """Draw a model of up to five columns, of which one may be fractional."""
    columns = int(rng.integers(1, 6)) if columns is None else columns
    rows = int(rng.integers(0, 5)) if rows is None else rows
    low = rng.integers(-4, 5, columns).astype(float)
    integer = np.ones(columns, dtype=bool)
    if columns and continuous and rng.random() < 0.3:
        integer[rng.integers(columns)] = False
    side, width = rng.integers(-4, 5, rows).astype(float), rng.choice([0, 2, np.inf])
    lower, upper = side - width, side
    if rng.random() < 0.5:
        lower, upper = -upper, -lower
    return LinearModel(
        cost=rng.integers(-4, 5, columns) * rng.choice([1.0, 0.25, 1000.0]),
        matrix=rng.integers(-4, 5, (rows, columns)).astype(float),
        row_lower=lower,
        row_upper=upper,
        col_lower=low,
        col_upper=low + rng.integers(0, 4, columns),
        integer=integer,
        offset=float(rng.choice([0.0, 2.0, -0.5])),
        sense=str(rng.choice(["min", "max"])),
        variables=(Family.of("x", item=range(columns)),) if columns else (),
        rows=(Family.of("row", number=range(rows)),) if rows else (),
        name="tiny",
    )


def least(model):
    """Return the cost of the best point by trying all, without rounding."""
    whole, rest = np.flatnonzero(model.integer), np.flatnonzero(~model.integer)
    matrix = model.matrix.toarray().tolist()
    sides = list(zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True))
    ranges = [range(int(model.col_lower[at]), int(model.col_upper[at]) + 1) for at in whole]
    sign, best = (1 if model.sense == "min" else -1), None
    for values in itertools.product(*ranges):
        point = [Fraction(0)] * len(model.cost)
        for at, value in zip(whole.tolist(), values, strict=True):
            point[at] = Fraction(value)
        ends = [Fraction(0)]
        if len(rest):
            last = int(rest[0])
            low, high = Fraction(model.col_lower[last]), Fraction(model.col_upper[last])
            for row, (lower, upper) in zip(matrix, sides, strict=True):
                total = sum(int(c) * v for c, v in zip(row, point, strict=True))
                for side, above in ((lower, True), (upper, False)):
                    if np.isinf(side) or not row[last]:
                        continue
                    end = (Fraction(side) - total) / int(row[last])
                    low, high = (
                        (max(low, end), high) if above == (row[last] > 0) else (low, min(high, end))
                    )
            ends = [low, high] if low <= high else []
        for end in ends:
            if len(rest):
                point[int(rest[0])] = end
            totals = [sum(int(c) * v for c, v in zip(row, point, strict=True)) for row in matrix]
            if all(lower <= t <= upper for t, (lower, upper) in zip(totals, sides, strict=True)):
                cost = sum(Fraction(c) * v for c, v in zip(model.cost.tolist(), point, strict=True))
                cost = sign * (cost + Fraction(model.offset))
                best = cost if best is None else min(best, cost)
    return Stopped.INFEASIBLE if best is None else sign * best


def feasible(rng):
    return drawn(rng, lambda truth: truth is not Stopped.INFEASIBLE)


def infeasible(rng):
    case = drawn(rng, lambda truth: truth is Stopped.INFEASIBLE, rows=4)
    return case._replace(model=with_ray(rng, case.model)) if rng.random() < 0.5 else case


def drawn(rng, wanted, **sizes):
    while True:
        model = tiny(rng, **sizes)
        if wanted(truth := least(model)):
            return Case(model, truth)


def unbounded(rng):
    return Case(with_ray(rng, feasible(rng).model), Stopped.UNBOUNDED)


def with_ray(rng, model):
    """Add two columns to a model, which gain as they grow, by a row alike, at any other row."""
    sign = 1 if model.sense == "min" else -1
    entries, count = rng.integers(-3, 4, len(model.row_lower)).astype(float), len(model.cost)
    matrix = np.hstack([model.matrix.toarray(), entries[:, None], -entries[:, None]])
    integer = rng.random() < 0.5
    return replace(
        model,
        cost=np.append(model.cost, [-2.0 * sign, sign]),
        matrix=np.vstack([matrix, np.append(np.zeros(count), [1.0, -1.0])]),
        row_lower=np.append(model.row_lower, 0.0),
        row_upper=np.append(model.row_upper, 0.0),
        col_lower=np.append(model.col_lower, [0.0, 0.0]),
        col_upper=np.append(model.col_upper, [np.inf, np.inf]),
        integer=np.append(model.integer, [integer, integer]),
        variables=(Family.of("x", item=range(count + 2)),),
        rows=(Family.of("row", number=range(len(entries) + 1)),),
    )


def trivial(rng):
    """Make a model without rows, columns, entries or costs, or with nothing left to choose."""
    kind = rng.integers(6)
    if kind == 0:
        model = tiny(rng, rows=0)
    elif kind == 1:
        model = tiny(rng, columns=0, rows=0)
    elif kind == 2:
        model = tiny(rng, columns=0)
    elif kind == 3:
        model = tiny(rng)
        model = replace(model, col_upper=model.col_lower)
    elif kind == 4:
        model = tiny(rng)
        model = replace(model, cost=0 * model.cost)
    else:
        model = tiny(rng)
        model = replace(model, matrix=0 * model.matrix.toarray())
    if kind == 0 and rng.random() < 0.5:  # without an end where it is good to go
        cost = np.where(model.cost == 0, 1.0, model.cost) * (1 if model.sense == "min" else -1)
        low = np.where(cost > 0, model.col_lower, -np.inf)
        high = np.where(cost > 0, np.inf, model.col_upper)
        either = rng.random() < 0.5
        cost = -cost if either else cost
        truth = Stopped.UNBOUNDED
        if not either:
            sign = 1 if model.sense == "min" else -1
            ends = np.where(cost > 0, low, high)
            costs = zip((sign * cost).tolist(), ends.tolist(), strict=True)
            truth = sum((Fraction(c) * Fraction(e) for c, e in costs), Fraction(model.offset))
        sign = 1 if model.sense == "min" else -1
        return Case(replace(model, cost=sign * cost, col_lower=low, col_upper=high), truth)
    return Case(model, least(model))


def limited(rng):
    """Make a model that takes long, whose truth is known by how it is made, and a tiny limit."""
    limit, kind = float(rng.choice(LIMITS)), rng.integers(3)
    model = market_split(
        int(rng.integers(20, 60)), int(rng.integers(3, 8)), int(rng.integers(2**31))
    )
    picks = len(model.cost) - 2 * len(model.row_lower)
    hidden = rng.integers(0, 2, picks)
    target = model.matrix.toarray()[:, :picks] @ hidden
    model = replace(model, row_lower=target, row_upper=target, offset=3.0)
    if rng.random() < 0.5:
        model = replace(model, cost=-model.cost, sense="max")
    if kind == 0:
        return Case(model, Fraction(3), limit)
    if kind == 1:  # even sums that are to be odd
        matrix = np.vstack([model.matrix.toarray(), 2.0 * (np.arange(len(model.cost)) < picks)])
        odd = 2 * int(hidden.sum()) + 1.0
        model = replace(
            model,
            matrix=matrix,
            row_lower=np.append(target, odd),
            row_upper=np.append(target, odd),
            rows=(Family.of("row", number=range(len(target) + 1)),),
        )
        return Case(model, Stopped.INFEASIBLE, limit)
    upper = np.append(model.col_upper[:-1], np.inf)
    better = 1.0 if model.sense == "max" else -1.0
    free = np.vstack([model.matrix.toarray(), np.zeros(len(model.cost))])
    free[-1, -2:] = 1.0, -1.0
    model = replace(
        model,
        matrix=np.hstack([free, np.zeros((len(free), 1))]),
        cost=np.append(model.cost, better),
        row_lower=np.append(target, -np.inf),
        row_upper=np.append(target, np.inf),
        col_lower=np.append(model.col_lower, 0.0),
        col_upper=np.append(upper, np.inf),
        integer=np.append(model.integer, rng.random() < 0.5),
        variables=(Family.of("x", item=range(len(model.cost) + 1)),),
        rows=(Family.of("row", number=range(len(free))),),
    )
    return Case(model, Stopped.UNBOUNDED, limit)


KINDS = {
    "feasible": feasible,
    "infeasible": infeasible,
    "unbounded": unbounded,
    "trivial": trivial,
    "tiny limit": limited,
}


def wrong(found, case):
    """Say what an answer claims that is not so."""
    model, truth, said = case.model, case.truth, []
    sign = 1 if model.sense == "min" else -1
    optimum = None if isinstance(truth, Stopped) else truth
    if found.values is not None:
        if truth is Stopped.INFEASIBLE:
            said.append("a point of an infeasible model")
        said += [f"its point breaks {breach}" for breach in model.violations(found.values, 1e-6)]
        if found.objective != float(model.exact_objective(found.values)):
            said.append(f"its point does not cost {found.objective}")
    if found.proven_optimal and found.objective != optimum:
        said.append(f"{found.objective} is proven, but the optimum is {truth}")
    if found.status is Stopped.OPTIMAL and not found.proven_optimal:
        said.append("optimal, but not proven")
    close = optimum is not None and found.values is not None
    close = close and abs(Fraction(found.objective) - optimum) <= 1e-5 * max(1, abs(optimum))
    if found.status is Stopped.WITHIN_TOLERANCE and not close:
        said.append(f"{found.objective} is optimal within a tolerance, but the optimum is {truth}")
    finite = found.bound is not None and truth is not Stopped.INFEASIBLE
    if finite and (optimum is None or sign * (Fraction(found.bound) - optimum) > 0):
        said.append(f"its bound is {found.bound}, but the optimum is {truth}")
    either = (Stopped.INFEASIBLE, Stopped.UNBOUNDED)
    claims = {each: (each,) for each in either} | {Stopped.INFEASIBLE_OR_UNBOUNDED: either}
    if found.status in claims and truth not in claims[found.status]:
        said.append(f"{found.status}, but it is {truth}")
    return said


def solved(case, method):
    """Ask a solver through our own back ends or Pyomo; return how it ended, and what is wrong."""
    options = Options(time_limit=case.limit or ENOUGH)
    try:
        found = driver.solve_linear(case.model, method, options, settle=False)
    except SolverError as error:
        return "refused", [] if "CP-SAT cannot represent" in str(error) else [str(error)]
    kind = str(found.status)
    if found.status in (Stopped.TIME_LIMIT, Stopped.UNKNOWN, Stopped.ERROR):
        kind += ", a point" * found.has_answer
    said = wrong(found, case)
    if found.status is Stopped.ERROR or (found.status is Stopped.UNKNOWN and case.limit is None):
        said.append(f"{found.status}: {found.raw_status}")
    return kind, said


def in_highs(path, limit, style):
    native = highspy.Highs()
    native.setOptionValue("output_flag", False)
    native.setOptionValue("time_limit", limit or ENOUGH)
    native.readModel(str(path))
    native.run()
    native.writeSolution(str(path.with_suffix(".txt")), style)


def in_program(path, limit, name):
    out = str(path.with_suffix(".txt"))
    if name == "cbc":
        words = ["cbc", str(path), "sec", str(limit or ENOUGH), "solve", "solution", out]
    else:
        within = ["--tmlim", str(math.ceil(limit or ENOUGH))]
        kind = "--freemps" if path.suffix == ".mps" else "--lp"
        words = ["glpsol", kind, str(path), *within, "--output", out]
    with contextlib.suppress(
        subprocess.TimeoutExpired
    ):  # GLPK may go on for ever, whatever --tmlim
        subprocess.run(words, check=False, capture_output=True, timeout=30)


def in_scip(path, limit, name):
    native = pytest.importorskip("pyscipopt").Model()
    native.hideOutput()
    native.readProblem(str(path))
    native.setParam("limits/time", limit or ENOUGH)
    native.optimize()
    if name == "best":
        native.writeBestSol(str(path.with_suffix(".txt")), write_zeros=False)


WRITERS = {
    "highs, style 0": (in_highs, 0),
    "highs, style 1": (in_highs, 1),
    "cbc": (in_program, "cbc"),
    "glpk": (in_program, "glpk"),
    "scip": (in_scip, "best"),
}


def filed(case, method, ending):
    """Have a solver write a file; return how reading it ended, and what is wrong."""
    write, name = WRITERS[method]
    sign = 1 if case.model.sense == "min" else -1
    with TemporaryDirectory() as folder:
        path, model = Path(folder, f"model{ending}"), case.model
        try:
            write_model(model, path)
            write(path, case.limit, name)
            point = read_solution(path.with_suffix(".txt"), case.model)
        except SolverError as error:
            has = isinstance(case.truth, Fraction) and case.limit is None and len(model.cost)
            if "its point is infeasible" in str(error) or not path.with_suffix(".txt").exists():
                has = False  # six digits are printed of it, or the solver did not end
            if (method, ending) == ("glpk", ".lp"):  # which wants a row, and no constant
                has = has and len(model.row_lower) and not model.offset
            return "refused", [f"refused though solved: {error}"] if has else []
    said = [f"its point breaks {breach}" for breach in case.model.violations(point, 1e-6)]
    if case.truth is Stopped.INFEASIBLE:
        said.append("a point of an infeasible model")
    if isinstance(case.truth, Fraction):
        off = sign * (case.model.exact_objective(point) - case.truth)
        if off < -1e-5 * max(1, abs(case.truth)):
            said.append(f"a point better than {case.truth}")
        if case.limit is None and off > 1e-5 * max(1, abs(case.truth)):
            said.append(f"a point worse by {float(off)}, though the solver had its time")
    return "a point", said


DOORS = {
    **{f"{name}, ours": (solved, name) for name in ("highs", "cp-sat")},
    **{
        f"{name}, Pyomo": (solved, name)
        for name in ("appsi_highs", "highs", "cbc", "glpk", "scip_direct")
    },
    **{
        f"{name}, {ending}": (filed, name, ending)
        for name in WRITERS
        for ending in (".mps", ".lp")
        if name != "highs, style 1" or ending == ".mps"
    },
}


def refuted(door, kind, count, seed=1):
    """Ask a door about so many models of a kind; return counts of ends, and what was wrong."""
    (ask, *how), rng = DOORS[door], np.random.default_rng(seed)
    counts, failures = collections.Counter(), []
    for number in range(count):
        outcome, said = ask(KINDS[kind](rng), *how)
        counts[outcome] += 1
        failures += [f"{number}: {outcome}: {'; '.join(said)}"] * bool(said)
    return counts, failures


def require(door):
    """Skip the test where a solver is not installed."""
    name = DOORS[door][1]
    if name == "scip":
        pytest.importorskip("pyscipopt")
    elif door.endswith("Pyomo"):
        try:
            pyomo.refuse(name, Options())
        except SolverError as error:
            pytest.skip(str(error))
    elif name in PROGRAMS and shutil.which(PROGRAMS[name]) is None:
        pytest.skip(f"{name} is not installed; CI installs it where it can")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", ["highs, ours", "cp-sat, ours"])
def test_what_our_back_ends_say_is_so(door, kind):
    """HiGHS called models without entries optimal whose rows deny every point."""
    assert refuted(door, kind, 3 if kind == "tiny limit" else 8)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", [door for door in DOORS if not door.endswith("ours")])
def test_what_other_solvers_say_is_so(door, kind):
    """CBC gave a bound of either sign, and called models infeasible that have no end."""
    require(door)
    assert refuted(door, kind, 4, seed=2)[1] == []


# CBC speaks of the relaxation; SCIP 10 has -998 for what grows without end as the last two do.
NO_POINT = LinearModel.build(
    "no point",
    [
        Variables(Family.of("x", i=(0, 1)), [-1, -2], [-4, 1], [-1, 2], integer=True),
        Variables(Family.of("y", i=(0, 1)), [2, -1]),
    ],
    [
        Rows(
            Family.of("row", i=range(5)),
            {
                "x": [[2, 2], [-3, -4], [-3, 1], [1, 4], [0, 0]],
                "y": [[0, 0], [2, -2], [-2, 2], [2, -2], [1, -1]],
            },
            lower=[1, -4, 3, 4, 0],
            upper=[np.inf, np.inf, np.inf, np.inf, 0],
        )
    ],
    sense="max",
)
NO_END = LinearModel.build(
    "no end",
    [
        Variables(
            Family.of("x", i=range(4)),
            [-1e3, -4e3, -4e3, 2e3],
            [0, 3, -4, 2],
            [3, 6, -2, 4],
            integer=True,
        ),
        Variables(Family.of("y", i=(0, 1)), [2, -1], integer=True),
    ],
    [
        Rows(
            Family.of("row", i=range(3)),
            {"x": [[3, -4, -2, 3], [4, -4, -3, 1], [0] * 4], "y": [[1, -1], [0, 0], [1, -1]]},
            lower=[-3, -3, 0],
            upper=[-1, -1, 0],
        )
    ],
    offset=2,
    sense="max",
)


@pytest.mark.slow
@pytest.mark.parametrize("door", [door for door in DOORS if door.endswith("Pyomo")])
@pytest.mark.parametrize("model", [NO_POINT, NO_END], ids=lambda model: model.name)
def test_nothing_is_claimed_of_models_of_which_solvers_say_what_is_wrong(door, model):
    require(door)
    truth = Stopped.INFEASIBLE if model is NO_POINT else Stopped.UNBOUNDED
    ask, *how = DOORS[door]
    assert ask(Case(model, truth), *how)[1] == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_what_all_solvers_say_is_so_of_many_models(door, kind):
    require(door)
    assert refuted(door, kind, share(200), seed=3)[1] == []


def main(count=200, seed=1, *chosen):
    """Try doors on so many models of each kind; all of them where none is named."""
    packages = ("highspy", "ortools", "pyomo", "pyscipopt")
    print(*(f"{name} {version(name)}" for name in packages), sep=", ", flush=True)
    wrong = 0
    for door in [door for door in DOORS if door in chosen] or DOORS:
        for kind in [kind for kind in KINDS if kind in chosen] or KINDS:
            counts, failures = refuted(door, kind, count, seed)
            for failure in failures:
                print(f"  {failure[:300]}")
            wrong += len(failures)
            print(f"{door}; {kind}: {dict(counts)}, {len(failures)} wrong", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    sys.exit(main(*numbers, *[200, 1][len(numbers) :], *sys.argv[3:]))
