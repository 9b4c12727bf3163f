"""OPT-IP and Relax-LP against their definitions, brute force and Schedule."""

import dataclasses

import numpy as np
import pytest
from brute_force import cost, held_by_running, optimum, schedules, solve
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import instances

from optsched import HindsightProgram, Instance, Schedule, run, verify
from optsched.bounds.lagrangian import certify
from optsched.errors import ModelError
from optsched.models import LatencyRelaxation, Running, latest_starts, safe_horizon
from optsched.models.hindsight import LATENESS, SCHEDULE_OBJECTIVES, schedule_cost


@st.composite
def programs(
    draw, objectives=SCHEDULE_OBJECTIVES, kind=HindsightProgram, late=LATENESS, most_running=2
):
    """Draw a tiny program of any kind; many requests are equal."""
    instance = draw(instances(max_requests=4, max_memory=8, max_arrival=3, max_output=3))
    count = len(instance)
    if draw(st.booleans()):
        instance = instance.take(np.sort(np.arange(count) % 2))
        count = len(instance)
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count, max_size=count))
    running = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=most_running))
    now = draw(st.integers(0, 2))
    steps = range(1, 7)
    assume(all(held_by_running(step, running) <= instance.memory for step in steps))
    slack = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    ends = np.maximum(instance.arrivals, now) + instance.outputs
    instance = instance.replace(
        weights=draw(st.sampled_from([None, weights])),
        deadlines=draw(st.sampled_from([None, ends + slack])),
    )
    objective, lateness = draw(st.sampled_from(objectives)), draw(st.sampled_from(late))
    if objective == "late-requests":
        instance, lateness = instance.replace(deadlines=ends + slack), "forbidden"
    penalties = [0.0, 0.5, 10.0] if lateness == "forbidden" else [0.5, 10.0]
    return kind(
        instance,
        horizon=int(ends.max()) + draw(st.integers(0, 4)),
        objective=objective,
        lateness=lateness,
        penalty=draw(st.sampled_from(penalties)),
        now=now,
        running=Running([h for h, _ in running], [r for _, r in running]),
        aggregate=draw(st.booleans()),
    )


def all_schedules(program, horizon=None):
    instance = program.instance
    soft = program.lateness != "forbidden" or program.objective == "late-requests"
    hard = instance.deadlines is not None and not soft
    return schedules(
        instance,
        horizon or program.horizon,
        now=program.now,
        running=pairs(program),
        deadlines=instance.deadlines.tolist() if hard else None,
    )


def pairs(program):
    return list(
        zip(program.running.tokens.tolist(), program.running.remaining.tolist(), strict=True)
    )


def cost_of(program, starts):
    return cost(starts, program.instance, program.objective, program.lateness, program.penalty)


def representatives(program):
    """Return the first request of each one's group."""
    instance = program.instance
    seen = {}
    first = []
    for i in range(len(instance)):
        key = [instance.prompts[i], instance.outputs[i], instance.arrivals[i]]
        weighted = program.objective in ("weighted-latency", "late-requests")
        if weighted and instance.weights is not None:
            key.append(instance.weights[i])
        if instance.deadlines is not None:
            key.append(instance.deadlines[i])
        first.append(seen.setdefault(tuple(key), i) if program.aggregate else i)
    return first


def literal_rows(program):
    """Eq. 5 and 6 by loops over requests, starts and steps: {row: ({column: value}, limits)}."""
    instance, first = program.instance, representatives(program)
    rows = {}
    for t in range(program.now + 1, program.horizon + 1):
        limit = instance.memory - held_by_running(t - program.now, pairs(program))
        busy = program.objective == "makespan"
        rows[f"memory[{t}]"] = ({}, (-np.inf, 0 if busy else limit))
        if busy and limit:
            rows[f"memory[{t}]"][0][f"busy[{t}]"] = -limit
        if busy and t < program.horizon:
            rows[f"order[{t}]"] = ({f"busy[{t}]": 1, f"busy[{t + 1}]": -1}, (0, np.inf))
    for g in sorted(set(first)):
        members = first.count(g)
        once = {}
        rows[f"once[{g}]"] = (once, (members, members))
        prompt, output = int(instance.prompts[g]), int(instance.outputs[g])
        end = program.horizon
        soft = program.lateness != "forbidden" or program.objective == "late-requests"
        if instance.deadlines is not None and not soft:
            end = min(end, int(instance.deadlines[g]))
        for k in range(max(int(instance.arrivals[g]), program.now), end - output + 1):
            once[f"start[{g},{k}]"] = 1
            for t in range(k + 1, k + output + 1):
                rows[f"memory[{t}]"][0][f"start[{g},{k}]"] = prompt + t - k
    return rows


@pytest.mark.few
@given(programs())
@examples(200)
def test_lowering_equals_the_printed_formulas_looped(program):
    model = program.to_linear()
    columns = model.column_names()
    found = {}
    for i, name in enumerate(model.row_names()):
        row = model.matrix[[i]].tocoo()
        entries = {columns[j]: v for j, v in zip(row.coords[1], row.data, strict=True)}
        found[name] = (entries, (model.row_lower[i], model.row_upper[i]))
    assert found == literal_rows(program)
    assert model.integer.all()
    again = dataclasses.replace(model)
    assert again == model
    assert (again.program, model.program) == (None, program)  # what is replaced may be anything
    rows, columns = model.matrix.shape
    assert program.size_at(program.horizon) == (columns, model.matrix.nnz, rows)
    assert repr(program).endswith(f"{columns:,} columns, {model.matrix.nnz:,} nonzeros>")


@pytest.mark.few
@given(programs())
@examples(200)
def test_optimum_equals_brute_force(program):
    model = program.to_linear()
    point = solve(model)
    best = min((cost_of(program, starts) for starts in all_schedules(program)), default=None)
    if best is None:
        assert point is None
        return
    assert model.objective(point) == pytest.approx(best)
    schedule = program.read(point)
    assert program.cost(schedule) == pytest.approx(best)
    assert tuple(schedule.starts.tolist()) in set(all_schedules(program))


@pytest.mark.few
@given(programs(), st.data())
@examples(200)
def test_points_of_schedules_are_feasible_exactly_if_the_schedules_are(program, data):
    instance = program.instance
    model = program.to_linear()
    starts = [
        data.draw(st.sampled_from(model.variables[0].keys[:, 1].tolist()))
        for _ in range(len(instance))
    ]
    schedule = Schedule(instance, starts)
    columns = set(model.column_names())
    first = representatives(program)
    if any(f"start[{g},{k}]" not in columns for g, k in zip(first, starts, strict=True)):
        with pytest.raises(ModelError, match="starts at step"):
            program.write_point(schedule)
        return
    point = program.write_point(schedule)
    assert model.objective(point) == pytest.approx(program.cost(schedule))
    assert program.cost(schedule) == pytest.approx(cost_of(program, starts))
    breaches = model.violations(point)
    assert (not breaches) == (tuple(starts) in set(all_schedules(program)))
    if not len(program.running.tokens):
        profile = schedule.memory_profile()
        overfull = {f"memory[{t}]" for t in np.flatnonzero(profile > instance.memory)}
        assert {breach.name for breach in breaches} == overfull
        memory = [violation for violation in schedule.check() if violation.kind == "memory"]
        steps = {t for v in memory for t in range(v.step, v.last_step + 1)}
        assert overfull == {f"memory[{t}]" for t in steps}
    again = program.read(point)
    assert program.cost(again) == pytest.approx(program.cost(schedule))
    assert np.array_equal(program.write_point(again), point)
    if not program.aggregate:
        assert np.array_equal(again.starts, schedule.starts)


@given(programs())
def test_equal_requests_may_be_aggregated(program):
    fields = {
        name: getattr(program, name)
        for name in ("horizon", "objective", "lateness", "penalty", "now", "running")
    }
    values = [
        optimum(HindsightProgram(program.instance, aggregate=aggregate, **fields).to_linear())
        for aggregate in (False, True)
    ]
    assert values[0] == pytest.approx(values[1]) if values[0] is not None else values[1] is None


@given(programs())
@examples(200)
def test_some_optimal_schedule_obeys_every_latest_start(program):
    """Compared over a horizon that reaches beyond the safe one."""
    instance, now, running = program.instance, program.now, program.running
    assume(len(instance) <= 3)
    safe = safe_horizon(instance, now, running)
    best, kept = np.inf, np.inf
    latest = latest_starts(instance, now, running)
    for starts in all_schedules(program, safe + 2):
        value = cost_of(program, starts)
        best = min(best, value)
        if (np.array(starts) <= latest).all():
            kept = min(kept, value)
    assert kept == best


@given(programs(objectives=["total-latency", "weighted-latency"], kind=LatencyRelaxation))
def test_the_relaxation_is_a_lower_bound_and_its_means_are_starts(relaxation):
    model = relaxation.to_linear()
    point = solve(model)
    best = min((cost_of(relaxation, starts) for starts in all_schedules(relaxation)), default=None)
    if best is None:
        return
    assert model.objective(point) <= best + 1e-6
    means = relaxation.read(point)
    output = relaxation.instance.outputs
    assert (means >= relaxation.instance.arrivals - 1e-6).all()
    assert (means + output <= relaxation.horizon + 1e-6).all()
    start = model.columns_of("start")
    steps = model.variables[0].keys[:, 1]
    assert means.sum() == pytest.approx((point[start] * steps).sum())


def test_prices_of_the_relaxation_prove_its_value():
    """Exact duality: the Lagrangian at the duals reaches the optimum of Relax-LP."""
    from scipy.optimize import linprog

    instance = Instance([3, 1, 1, 2], [2, 2, 3, 1], memory=6, arrivals=[0, 0, 1, 2])
    relaxation = LatencyRelaxation(instance, aggregate=False)
    model = relaxation.to_linear()
    memory, once = model.rows_of("memory"), model.rows_of("once")
    result = linprog(
        model.cost,
        A_ub=model.matrix[memory],
        b_ub=model.row_upper[memory],
        A_eq=model.matrix[once],
        b_eq=model.row_upper[once],
    )
    duals = np.concatenate([result.eqlin.marginals, result.ineqlin.marginals])
    prices = relaxation.prices(duals)
    assert len(prices) == relaxation.horizon
    assert (prices >= 0).all()
    assert prices.max() > 0
    certificate = certify(instance, prices, instance.arrivals)
    assert float(verify(certificate, instance)) == pytest.approx(result.fun, abs=1e-6)


@given(programs(objectives=["makespan"], late=["forbidden"], most_running=0))
def test_the_relaxed_makespan_is_at_least_memory_time_over_memory(program):
    relaxed = optimum(program.to_linear().relax())
    instance = program.instance
    if relaxed is not None:
        assert relaxed >= program.now + instance.areas.sum() / instance.memory - 1e-6
        assert (
            relaxed >= (np.maximum(instance.arrivals, program.now) + instance.outputs).max() - 1e-6
        )


def test_the_relaxed_makespan_beats_the_textbook_form():
    """Ten requests that only fit one by one: 20 steps; a mean completion bound proves 11."""
    instance = Instance([5] * 10, [2] * 10, memory=7)
    program = HindsightProgram(instance, horizon=20, objective="makespan", aggregate=False)
    assert optimum(program.to_linear().relax()) >= 130 / 7 - 1e-6  # memory-time over memory
    assert optimum(program.to_linear()) == 20


def test_first_come_memory_of_running_requests_delays_a_start():
    """Tokens 3, 4 are held at steps 4, 5 of the running request: 6 - 4 = 2 do not hold 3."""
    instance = Instance([2], [1], memory=6)
    program = HindsightProgram(instance, horizon=8, now=3, running=Running([2], [2]))
    assert program.read(solve(program.to_linear())).starts.tolist() == [3]
    fuller = HindsightProgram(instance, horizon=8, now=3, running=Running([3], [2]))
    assert fuller.read(solve(fuller.to_linear())).starts.tolist() == [5]
    assert program.to_linear().row_name(1) == "memory[4]"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=5), st.integers(1, 12))
def test_load_of_running_requests_equals_counting(requests, steps):
    running = Running([h for h, _ in requests], [r for _, r in requests])
    expected = [held_by_running(step, requests) for step in range(1, steps + 1)]
    assert running.load(steps).tolist() == expected
    assert running.area == sum(h + u for h, r in requests for u in range(1, r + 1))
    assert running.last_step == max((r for _, r in requests), default=0)


def test_smallest_output_first_is_not_optimal_for_equal_prompts():
    """Jaillet's Theorem 4.2 does not hold on finite integers: MC-SF takes 22, the optimum is 21."""
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=13)
    assert run(instance, "mc-sf").total_latency == 22
    program = HindsightProgram(instance)
    assert program.horizon_is_safe
    schedule = program.read(solve(program.to_linear()))
    assert schedule.total_latency == 21
    assert sorted(schedule.completions.tolist()) == [1, 2, 6, 12]


def test_example_1_of_sorted_f():
    instance = Instance([63] + [1] * 21, [1] + [2] * 21, memory=64)
    model = HindsightProgram(instance, horizon=6).to_linear()
    assert len(model.rows_of("once")) == 2
    assert optimum(model) == 45


def test_a_shorter_horizon_can_cost_more():
    """The long request first takes 4 steps and costs 10, the two short ones first 5 and 9."""
    instance = Instance([3, 2, 0], [3, 2, 2], memory=8)
    assert optimum(HindsightProgram(instance, objective="makespan").to_linear()) == 4
    short = HindsightProgram(instance, horizon=4)
    assert not short.horizon_is_safe
    assert optimum(short.to_linear()) == 10
    assert optimum(HindsightProgram(instance).to_linear()) == 9


def test_penalties_replace_hard_deadlines():
    instance = Instance([3, 3], [1, 1], memory=4, deadlines=[1, 1])
    assert optimum(HindsightProgram(instance, horizon=1).to_linear()) is None
    late = HindsightProgram(instance, horizon=3, lateness="per-request", penalty=5)
    assert optimum(late.to_linear()) == 1 + 2 + 5
    steps = HindsightProgram(instance, horizon=3, lateness="per-step", penalty=7)
    assert optimum(steps.to_linear()) == 1 + 2 + 7


def test_weights_and_deadlines_split_groups_only_where_they_count():
    instance = Instance([1] * 4, [1] * 4, memory=9, weights=[1, 2, 2, 1])
    assert len(HindsightProgram(instance).to_linear().rows_of("once")) == 1
    weighted = HindsightProgram(instance, objective="weighted-latency").to_linear()
    assert weighted.row_names()[:2] == ["once[0]", "once[1]"]
    due = instance.replace(deadlines=[5, 5, 5, 6])
    assert len(HindsightProgram(due).to_linear().rows_of("once")) == 2


def test_huge_numbers_keep_the_safe_horizon_within_64_bits():
    instance = Instance([0] * 20, [10**9 - 1] * 20, memory=10**9)
    assert safe_horizon(instance) == 20 * (10**9 - 1)
    with pytest.raises(ModelError, match=r"nonzeros over .* steps, .* take fewer requests"):
        HindsightProgram(instance).to_linear()


TWO = Instance([1, 1], [2, 3], memory=9, labels=["a", "b"], arrivals=[0, 4])
REFUSED = [
    (lambda: HindsightProgram(TWO, objective="latency"), "unknown objective 'latency': did you"),
    (lambda: HindsightProgram(TWO, lateness="never"), "unknown lateness 'never'"),
    (lambda: HindsightProgram(TWO, penalty=-1), "penalty is -1, but must be 0 or"),
    (
        lambda: HindsightProgram(TWO, lateness="per-step"),
        "without a penalty, which would drop the deadlines; pass a penalty, such as 10",
    ),
    (lambda: HindsightProgram(TWO, horizon=0), "horizon is 0, but must be a whole number of"),
    (lambda: HindsightProgram(TWO, horizon=7.5), "horizon is 7.5, but must be a whole number"),
    (lambda: HindsightProgram(TWO, now=-1), "now is -1, but must be a whole number of at least 0"),
    (
        lambda: HindsightProgram(TWO, horizon=6),
        "request b cannot complete by step 6: it starts at step 4 at the earliest and makes 3 "
        "tokens; raise the horizon",
    ),
    (
        lambda: HindsightProgram(TWO.replace(deadlines=[2, 6])),
        "request b cannot complete by step 6: .* allow it to miss its deadline",
    ),
    (
        lambda: HindsightProgram(TWO).write_point(Schedule(TWO.replace(memory=8), [0, 4])),
        "the schedule belongs to another instance",
    ),
    (
        lambda: HindsightProgram(TWO, horizon=8).write_point(Schedule(TWO, [0, 6])),
        "request b starts at step 6, but the program lets it start at steps 4 to 5",
    ),
    (
        lambda: HindsightProgram(TWO, horizon=7).read(np.full(7, 0.5)),
        r"the point is fractional: start\[0,0\] is 0.5",
    ),
    (
        lambda: HindsightProgram(TWO, horizon=7).read(np.zeros(7)),
        "the point starts request a and its equals 0 times, but there are 1 of them",
    ),
    (lambda: HindsightProgram(TWO, horizon=7).read([1]), r"the point has shape \(1,\), but"),
    (
        lambda: HindsightProgram(TWO, now=2, running=Running([3, 4], [3, 2])),
        "the running requests alone hold 11 tokens at step 4, but the memory holds 9",
    ),
    (lambda: Running([1], [1, 2]), "1 numbers of tokens, but 2 of remaining steps"),
    (lambda: Running([1, 1], [1, 0]), "running request 1: 1 tokens and 0 steps to go"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(make, message):
    with pytest.raises(ModelError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_program_says_what_it_is():
    assert repr(HindsightProgram(TWO, horizon=9, now=2)) == (
        "<HindsightProgram of 'instance': total-latency, steps 2..9, 9 columns, 30 nonzeros>"
    )
    assert schedule_cost(Schedule(TWO, [0, 4]), "weighted-latency", "per-step", 9) == 5
