"""What is claimed at the edge of numbers, against every answer in exact arithmetic.

Weights, penalties, prices, coefficients are fractional, huge, tiny, and nearly equal. What is
called proven is the optimum exactly, no bound is above it, no objective but the cost rounded once,
no gap below the true one; and where all costs are whole and below 2**53, nothing is left unproven.
"""

import itertools
import re
from contextlib import nullcontext, suppress
from fractions import Fraction

import numpy as np
import pytest
from brute_force import batches, optima, ratio
from effort import share
from exact_costs import Question, least_of_model, point_cost, point_fits
from strategies import tiny_instance

import optsched
from optsched import HindsightProgram, Instance, OptschedError, SolveParams, bound, solve, verify
from optsched.models import (
    BalanceProgram,
    BalanceState,
    BatchSelection,
    EventProgram,
    Family,
    LatencyRelaxation,
    Rows,
    Variables,
)

FRACTIONS = [1e-3, 0.1, 0.2, 0.3, 1 / 3, 2 / 3, 1.1, 2.9]
LARGE = [1e8, 1e10, 1e13, 2.0**53, 2.0**53 + 2, 1e16, 2.0**60, 1e19, 1e25]
SMALL = [1e-9, 1e-12, 1e-16, 1e-30]
ENDS = [1e-100, 1e-90, 1.0, 1e90, 1e100]
EDGES = [5e6, 2.0**23 - 1, 2.0**23, 2.0**31 - 1, 2.0**31, 2.0**53, 2.0**62, 2.0**63, 2.0**64]
WEIGHTS = {
    "none": lambda rng, n: None,
    "whole": lambda rng, n: rng.integers(1, 10, n),
    "large whole": lambda rng, n: rng.integers(1, 10, n) + rng.choice([10**6, 10**12, 2**46]),
    "mixed whole": lambda rng, n: rng.integers(1, rng.choice([9, 2**46], n)),
    "fractions": lambda rng, n: rng.choice(FRACTIONS, n),
    "dyadic": lambda rng, n: rng.integers(1, 1000, n) / 2.0 ** rng.integers(1, 30),
    "large and fractions": lambda rng, n: rng.choice(FRACTIONS + LARGE[:3], n),
    "large": lambda rng, n: rng.choice(LARGE, n),
    "small": lambda rng, n: rng.choice(SMALL, n),
    "small and fractions": lambda rng, n: rng.choice(FRACTIONS + SMALL, n),
    "ends": lambda rng, n: rng.choice(ENDS, n),
    "nearly one": lambda rng, n: 1 + rng.integers(0, 4, n) * 0.5 ** rng.choice([30, 40, 50, 52]),
    "nearly equal": lambda rng, n: 1e10 + rng.integers(0, 4, n) * rng.choice([1, 0.5, 2.0**-18]),
    "any": lambda rng, n: 10.0 ** rng.uniform(-12, 12, n),
}
LIMIT = 20.0  # seconds, which tiny instances never need


def draw(number, *, most=5, late=True):
    """Draw a question about an instance: its weights by turns, all else at random."""
    rng = np.random.default_rng(number)
    count, memory = int(rng.integers(2, most + 1)), int(rng.integers(3, 11))
    outputs = rng.integers(1, min(5, memory) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    arrivals = np.sort(rng.integers(0, 6, count)) * int(rng.integers(0, 2))
    shape = rng.choice(["twins", "huge memory", "far apart", *["plain"] * 7])
    if shape == "twins":
        twin = rng.integers(0, 2, count)
        prompts, outputs = prompts[twin], outputs[twin]
    if shape == "huge memory":
        token = int(rng.choice([2**20, 2**25, 90_000_000]))
        prompts, memory = prompts * token + rng.integers(0, 3, count), memory * token + 7
    if shape == "far apart":
        arrivals = arrivals + int(rng.choice([500, 10**12 - 40])) * (np.arange(count) > 0)
    kind = list(WEIGHTS)[number % len(WEIGHTS)]
    weights = WEIGHTS[kind](rng, count)
    instance = Instance(prompts, outputs, memory, arrivals, weights=weights, name=f"{number}")
    objectives = ["weighted-latency"] * 8 if weights is not None else []
    objective = str(rng.choice([*objectives, "total-latency", "makespan"]))
    lateness, penalty = "forbidden", 0.0
    if late and (chance := rng.random()) < 0.45:
        slack = rng.integers(0, 6, count) + 4 * (chance < 0.1)
        instance = instance.replace(deadlines=arrivals + outputs + slack)
        if chance >= 0.1:
            lateness = str(rng.choice(["per-step", "per-request"]))
            penalty = float(rng.choice(FRACTIONS + LARGE + SMALL + ENDS + EDGES))
    return rng, instance, objective, lateness, penalty


def whole(question):
    """Return whether every schedule costs a whole number below 2**53, whatever it is asked."""
    if question.penalty % 1:
        return False  # even where nothing can be late
    starts = [question.starts(i) for i in range(len(question.sizes))]
    costs = [
        [cost for start in mine if (cost := question.start_cost(i, start)) is not None]
        for i, mine in enumerate(starts)
    ]
    fractional = any(cost.denominator > 1 for mine in costs for cost in mine)
    return not fractional and sum(max(mine, default=0) for mine in costs) < 2**53


def judge(found, least, cost, where, *, prove=False):
    """Compare what a result claims with the optimum, and with the exact cost of its answer."""
    sign, text = 1 if found.sense == "min" else -1, str(found)
    assert cost is not None, f"{where}: the answer is infeasible"
    assert found.objective == float(cost), where
    assert found.proven_optimal == ("proven optimal" in text), where
    if re.fullmatch(r"optimal( within horizon \d+)?", found.status):
        assert found.proven_optimal, where
    if found.proven_optimal:
        assert cost == least, where
    assert found.proven_optimal or not prove, where
    if found.bound is None:
        return
    assert sign * Fraction(found.bound) <= sign * least, where
    if cost and not found.proven_optimal:
        gap = sign * (cost - Fraction(found.bound)) / abs(cost)
        assert found.gap >= float(gap) * (1 - 1e-12) - 2**-50, where
        assert found.gap >= float(sign * (cost - least) / abs(cost)) * (1 - 1e-12), where
        if shown := re.search(r"gap ([\d,.]+)%", text):
            assert Fraction(shown[1].replace(",", "")) / 100 >= gap * (1 - Fraction(1, 10**12)), (
                where
            )


def ask(method, problem, limit=LIMIT, **options):
    """Solve, or return nothing where CP-SAT has no such numbers or there are too many steps."""
    try:
        return solve(problem, method=method, time_limit=limit, **options)
    except OptschedError as error:
        said = str(error)
    assert re.fullmatch(".*(CP-SAT|nonzeros).*", said), said  # one line
    assert method != "auto", said
    return None


def check_instance(number, methods, *, workers=None):
    """Solve one instance by some methods; return whether anything was proven."""
    rng, instance, objective, lateness, penalty = draw(
        number, most=5 if workers is None else 4, late=workers is None
    )
    if workers is not None:
        if 2 * instance.memory > 10**9:  # which is refused
            return 0
        workers = [instance.memory, int(rng.integers(instance.peaks.max(), instance.memory + 1))]
    question = Question(instance, objective, lateness, penalty, memories=workers)
    least, proven = question.least(), 0
    free = instance.deadlines is None
    near = instance.memory < 1000 and np.ptp(instance.arrivals) < 1000
    for method in methods:
        if method in ("search", "exact") and (not free or objective == "makespan"):
            continue
        if method == "exact" and (objective != "total-latency" or workers is not None):
            continue
        where = f"{number}: {method}, {objective}, {lateness} {penalty!r}"
        work = 0.02 if method == "search" else None
        params = SolveParams(lateness=lateness, penalty=penalty, work=work)
        if least is None:
            with pytest.raises(OptschedError):
                solve(instance, method=method, objective=objective, params=params)
            continue
        given = {"objective": objective, "params": params, "workers": workers}
        found = ask(method, instance, LIMIT if near else 2.0, **given)
        if found is None:
            continue
        schedule = found.schedule
        cost = question.cost(schedule.starts.tolist(), schedule.placement.tolist())
        sure = method != "search" and near and whole(question)
        judge(found, least, cost, where, prove=sure)
        proven += found.proven_optimal
        if found.certificate is not None and free:
            assert verify(found.certificate, instance, schedule.workers) <= least, where
    return proven


ALL = ("auto", "highs", "cp-sat", "exact", "search")


def test_both_oracles_find_the_same_optimum():
    for number in range(share(100)):
        instance = tiny_instance(np.random.default_rng(number), number % 2)
        instance = instance.replace(weights=0.25 + np.arange(len(instance)))
        for objective, least in optima(instance).items():
            assert Question(instance, objective).least() == Fraction(float(least)), number


EXAMPLES = {
    "a difference of 0.5 in 3e10": (
        Instance([3, 3, 1, 3, 1], [3, 4, 4, 1, 4], 9, weights=[1e10, 2.9, 2.9, 0.1, 0.1]),
        "weighted-latency",
        SolveParams(),
    ),
    "a difference of 1e-12": (
        Instance(
            [3, 6, 4, 3],
            [4, 3, 5, 1],
            10,
            [2, 3, 5, 5],
            weights=[1, 1 + 3 * 2.0**-40, 1, 1],
            deadlines=[17, 16, 20, 12],
        ),
        "weighted-latency",
        SolveParams(),
    ),
    "costs below the tolerance of a solver": (
        Instance([1, 0, 1], [4, 3, 4], 5, [2, 3, 3], weights=[1e-100, 1e-99, 1e-77]),
        "weighted-latency",
        SolveParams(),
    ),
    "a penalty beside which all else vanishes": (
        Instance(
            [0, 1, 1, 0, 2],
            [1, 2, 3, 5, 3],
            5,
            [0, 1, 4, 5, 5],
            weights=[1e8, 1e8, 0.2, 2.9, 1e13],
            deadlines=[4, 6, 11, 15, 13],
        ),
        "weighted-latency",
        SolveParams(lateness="per-request", penalty=1e60),
    ),
    "a penalty of more than 64 bits": (
        Instance([4, 0, 2, 1], [2, 5, 2, 2], 6, deadlines=[4, 7, 5, 7]),
        "makespan",
        SolveParams(lateness="per-request", penalty=2.0**64),
    ),
    "a sum of more than 64 bits": (
        Instance([1, 1, 2], [4, 4, 3], 5, [1, 10**12 - 38, 10**12 - 36], weights=[6, 2e13, 3e13]),
        "weighted-latency",
        SolveParams(),
    ),
    "memory that a relative tolerance overfills": (
        Instance([450_000_002, 0, 180_000_001, 270_000_001], [5, 3, 5, 5], 900_000_007),
        "total-latency",
        SolveParams(),
    ),
}


@pytest.mark.slow("a difference of 0.5 in 3e10")
@pytest.mark.parametrize("example", EXAMPLES)
def test_what_was_once_claimed_or_failed_is_right(example):
    instance, objective, params = EXAMPLES[example]
    question = Question(instance, objective, params.lateness, params.penalty)
    for method in ("auto", "highs", "cp-sat"):
        found = ask(method, instance, 5.0, objective=objective, params=params)
        if found is not None:
            cost = question.cost(found.schedule.starts.tolist())
            judge(found, question.least(), cost, (example, method))


@pytest.mark.no_cover  # other tests reach every line that runs here
@pytest.mark.parametrize("part", range(4))
def test_what_is_called_proven_is_the_optimum(part):
    assert sum(check_instance(number, ALL) for number in range(part, share(60), 4))


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(20))
def test_two_thousand_instances_are_claimed_no_better_than_they_are(part):
    for number in range(1000 + part, 3000, 20):
        check_instance(number, ("auto", ALL[1 + number % 4]))


@pytest.mark.few
@pytest.mark.no_cover
def test_what_is_called_proven_on_two_workers_is_the_optimum():
    assert sum(check_instance(number, ALL, workers=2) for number in range(share(50)))


@pytest.mark.few
@pytest.mark.no_cover
def test_no_bound_is_above_the_optimum():
    for number in range(share(150)):
        _, instance, objective, _, _ = draw(number, late=False)
        least = Question(instance, objective).least()
        for method in ("auto", "closed-form", "lagrangian", "sawtooth"):
            found = None
            with nullcontext() if method == "auto" else suppress(OptschedError):  # no such bound
                found = bound(instance, method, objective)
            if found is None:
                continue
            assert Fraction(found.value) <= least, (number, method)
            if found.certificate is not None:
                assert Fraction(found.value) <= verify(found.certificate, instance) <= least


@pytest.mark.few
def test_what_is_called_proven_of_a_program_is_the_optimum():
    for number in range(share(150)):
        rng, instance, objective, lateness, penalty = draw(number, most=4)
        if np.ptp(instance.arrivals) > 100:
            continue
        asked = {"objective": objective, "lateness": lateness, "penalty": penalty}
        prices, extra = None, None
        if rng.random() < 0.3:
            prices = rng.choice([0, *FRACTIONS, *SMALL[:2], *EDGES[:5]], int(rng.integers(1, 9)))
            extra = paid(instance, prices)
        program = HindsightProgram(instance, memory_prices=prices, **asked)
        given = {"horizon": program.horizon, "extra": extra}
        question = Question(instance, objective, lateness, penalty, **given)
        least = question.least()
        problems = [(method, program) for method in ("auto", "highs", "cp-sat")]
        if lateness == "forbidden" and prices is None:
            problems.append(("cp-sat", EventProgram(instance, objective)))
        for method, problem in problems:
            where = f"{number}: {method} {problem!r}"
            if least is None:
                assert ask(method, problem).status == "infeasible", where
                continue
            if (found := ask(method, problem)) is None:
                continue
            if not found.has_answer:  # what HiGHS found overfills such a memory by its tolerance
                assert instance.memory > 1000, where
                assert Fraction(found.bound) <= least, where
                continue
            sure = instance.memory < 1000 and prices is None and whole(question)
            judge(found, least, question.cost(found.answer.starts.tolist()), where, prove=sure)
        if least is not None:
            relaxed = solve(LatencyRelaxation(instance, memory_prices=prices, **asked))
            assert relaxed.bound is None or Fraction(relaxed.bound) <= least, number


def paid(instance, prices):
    """Return what the memory of a request costs from a start on, as a function."""
    exact = [Fraction(price) for price in prices.tolist()]

    def cost(i, start):
        prompt, steps = int(instance.prompts[i]), range(1, int(instance.outputs[i]) + 1)
        return sum((prompt + u) * price for u, price in zip(steps, exact[start:], strict=False))

    return cost


COEFFICIENTS = {
    "whole": lambda rng, size: rng.integers(-9, 10, size),
    "large whole": lambda rng, size: rng.integers(-(2**47), 2**47, size),
    "fractions": lambda rng, size: rng.choice([-1, 1, 1], size) * rng.choice(FRACTIONS, size),
    "small": lambda rng, size: rng.integers(1, 5, size) * rng.choice([1e-9, 1e-15]),
    "nearly equal": lambda rng, size: 1e10 + rng.integers(-3, 4, size) * 0.1,
    "any": lambda rng, size: (
        rng.choice([-1, 1], size) * rng.choice(FRACTIONS + LARGE + SMALL + [1e-6, 1e6], size)
    ),
}


def draw_model(number):
    """Draw a model of up to six whole columns, with rows that some point meets exactly."""
    rng = np.random.default_rng(number)
    count, rows = int(rng.integers(1, 7)), int(rng.integers(0, 4))
    cost = COEFFICIENTS[list(COEFFICIENTS)[number % len(COEFFICIENTS)]](rng, count)
    kind = str(rng.choice(["whole", "whole", "fractions", "any"]))
    matrix = COEFFICIENTS[kind](rng, (rows, count)) * (rng.random((rows, count)) < 0.8)
    most = rng.integers(1, 4, count)
    met = np.array(rng.integers(0, most + 1))
    entries = [[Fraction(entry) for entry in row] for row in matrix.tolist()]
    side = [float(sum(a * b for a, b in zip(row, met.tolist(), strict=True))) for row in entries]
    tight = rng.random(rows) < 0.3
    sense, offset = str(rng.choice(["min", "max"])), float(rng.choice([0, 0, 0.1, 1e10, -1e16]))
    x = Variables(Family.of("x", item=range(count)), cost, upper=most, integer=True)
    groups = []
    if rows:
        family = Family.of("row", number=range(rows))
        groups = [Rows(family, {"x": matrix}, np.where(tight, side, -np.inf), side)]
    return optsched.LinearModel.build("tiny", [x], groups, sense=sense, offset=offset)


def check_model(model, method, where, *, prove=False):
    """Solve a model of whole columns; where there is an answer, judge it."""
    least, found = least_of_model(model), None
    with suppress(OptschedError):  # which the solver does not take
        found = solve(model, method=method, time_limit=LIMIT)
    if found is None:
        assert not prove, where
        return
    if found.values is None:
        assert found.status != "infeasible" or least is None, where
        assert found.bound is None or least is None or found.bound <= least, where
        return
    point = [round(value) for value in found.values.tolist()]
    assert found.values.tolist() == point, where
    if point_fits(model, point):
        judge(found, least, point_cost(model, point), where, prove=prove)
    else:  # within the tolerance of a solver, of which nothing is claimed
        assert not found.proven_optimal, where


@pytest.mark.few
@pytest.mark.parametrize("ending", ["", ".mps", ".lp"])
def test_what_is_called_proven_of_a_model_is_the_optimum(ending, tmp_path):
    for number in range(share(250)):
        model = draw_model(number)
        plain = (model.cost == np.rint(model.cost)).all() and model.offset < 1e9
        plain &= (model.matrix.data == np.rint(model.matrix.data)).all()
        plain &= float(np.abs(model.cost).sum() * 3 + np.abs(model.offset)) < 2**53
        plain &= bool(np.abs(model.matrix.data).max(initial=0) < 2**20)
        methods = ("highs", "cp-sat")
        if ending:
            optsched.write_model(model, tmp_path / f"tiny{ending}")
            sizes, known = np.abs(model.matrix.data), None
            with suppress(OptschedError):
                known = optsched.read_model(tmp_path / f"tiny{ending}")
            if known is None:  # what HiGHS drops or does not take is refused
                large = sizes.max(initial=0) >= 1e15 or np.abs(model.cost).max() >= 1e20
                assert large or sizes.min() <= 1e-12, number
                continue
            model = known
            assert model.same_as(draw_model(number)), number
            methods = ("auto",)
        for method in methods:
            check_model(model, method, (number, method), prove=bool(plain))


@pytest.mark.few
def test_what_is_called_proven_with_rows_and_costs_of_ones_own_is_the_optimum():
    for number in range(share(100)):
        rng, instance, objective, _, _ = draw(number, most=3, late=False)
        if np.ptp(instance.arrivals) > 1000 or objective == "makespan" or instance.memory > 1000:
            continue
        instance = instance.replace(arrivals=np.minimum(instance.arrivals, 3))
        horizon = int(instance.arrivals[-1] + instance.outputs.sum())
        model = HindsightProgram(instance, horizon, objective).to_linear()
        count = len(model.cost)
        if count > 45:
            continue
        own = rng.choice(FRACTIONS + SMALL + [1, 2, 3, 1e10], count)
        models = {
            "objective": model.with_objective(own, offset=float(rng.choice([0, 0.1, 1e10]))),
            "row": model.with_rows("own", own, upper=float(own.max() * rng.uniform(0.5, 2))),
            "column": model.with_columns(
                "own",
                {"memory": -float(rng.choice([1, 0.5, 1e-6]))},
                cost=float(rng.choice([-1e-9, -0.1, 0.1, -1 / 3, 1e10, -1e10])),
                upper=3,
                integer=True,
            ),
        }
        which = list(models)[number % 3]
        for method in ("auto", "cp-sat"):
            check_model(models[which], method, f"{number}: {which} by {method}")


@pytest.mark.few
def test_the_best_batches_and_steps_of_huge_loads_are_proven():
    for number in range(share(60)):
        rng = np.random.default_rng(number)
        unit = int(rng.choice([1, 2**20, 2**31, 2**34]))
        workers, steps, waiting = 2 + int(rng.integers(2)), 1 + int(rng.integers(2)), 3
        state = BalanceState(
            rng.integers(0, 9, (workers, steps)) * unit + rng.integers(0, 2, (workers, steps)),
            rng.integers(0, 3, workers),
            rng.integers(0, 9, waiting) * unit + rng.integers(0, 2, waiting),
            bonus=rng.integers(0, 5, waiting) * unit * int(rng.integers(2)),
        )
        program = BalanceProgram(state)
        least = min(
            cost
            for places in itertools.product(range(-1, workers), repeat=waiting)
            if (cost := imbalance(state, places, program.admissions)) is not None
        )
        for method in ("auto", "cp-sat", "highs") if unit <= 2**20 else ("cp-sat",):
            found = solve(program, method=method, time_limit=LIMIT)
            cost = imbalance(state, found.answer.worker.tolist(), program.admissions)
            judge(found, least, Fraction(cost), f"{number}: {method}", prove=True)
        memory = int(rng.integers(3, 20))
        outputs = rng.integers(1, min(9, memory) + 1, 6)
        prompts = rng.integers(0, memory - outputs + 1)
        for fit in ("peak", "profile"):
            selection = BatchSelection(prompts, outputs, memory, fit)
            least = min(ratio(batch, selection) for batch in batches(selection))
            found = solve(selection)
            judge(found, least, found.answer.ratio, f"{number}: {fit}", prove=True)


def imbalance(state, places, admissions):
    """Return the imbalance of a step less the bonus, None where that is no assignment."""
    free, workers = state.free.tolist(), range(len(state.free))
    if sum(place >= 0 for place in places) != admissions:
        return None
    if any(sum(place == worker for place in places) > free[worker] for worker in workers):
        return None
    total = -sum(int(state.bonus[i]) for i, place in enumerate(places) if place >= 0)
    for step in range(state.alive.shape[1]):
        loads = [int(load) for load in state.alive[:, step]]
        for i, place in enumerate(places):
            if place >= 0:
                loads[place] += int(state.waiting[i]) + step
        total += len(loads) * max(loads) - sum(loads)
    return total
