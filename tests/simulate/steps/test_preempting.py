"""Decisions that preempt: equal to literal servers, in steps and on clocks, whatever is kept."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import effort
import literal_preempting as literal
import numpy as np
import pytest
from brute_force_clocked import EXACT, drawn, least_latency
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from strategies import DYADIC

import optsched
from optsched import DecisionPolicy, Instance, bound, compare, forecast, get_clock, run
from optsched.clock import LinearClock
from optsched.errors import PolicyError
from optsched.policies import Decision, State
from optsched.problem.premises import strongest, uncovered
from optsched.problem.work import arrival_times

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ("shortest_remaining", "least_attained", "limited", "feedback")


@pytest.fixture(scope="module")
def recipes():
    """The functions of the page on policies."""
    page = (ROOT / "docs" / "how-to" / "policy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    found = {"np": np}
    for block in blocks:
        if "Decision.most_urgent" in block:
            exec(block.partition("\nfor decide")[0], found)
    return found


@st.composite
def crowded(draw):
    """Draw requests that compete for memory, and intervals that may miss their outputs."""
    memory, count = draw(st.integers(6, 30)), draw(st.integers(1, 7))
    outputs = draw(st.lists(st.integers(1, min(memory, 9)), min_size=count, max_size=count))
    prompts = [draw(st.integers(0, memory - output)) for output in outputs]
    arrivals = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    lower = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    upper = [low + draw(st.integers(0, 6)) for low in lower]
    return Instance(
        prompts,
        outputs,
        memory,
        arrivals,
        output_lower=lower,
        output_upper=upper,
        seconds_per_step=0.75,
    )


def attempts_of(found):
    return sorted(
        zip(found.requests.tolist(), found.starts.tolist(), found.tokens.tolist(), strict=True)
    )


def both(instance, name, recipes, kind, clock, cost=0.0):
    """Run a recipe and its literal twin."""
    policy = DecisionPolicy(name, "", recipes[name], preemption=kind, resume_cost=cost)
    known = forecast(instance, "column")
    bounds = known.lower.tolist(), known.upper.tolist()
    server = literal.Server(instance, kind, cost, clock, bounds)
    literal.serve(server, getattr(literal, name))
    options = {} if clock is None else {"clock": clock}
    return run(instance, policy, intervals="column", **options), server


@examples(150)
@given(
    crowded(),
    st.sampled_from(RECIPES),
    st.sampled_from(["recomputed", "resumed"]),
    st.sampled_from([None, DYADIC]),
    st.sampled_from([0.0, 0.25, 0.1]),
)
def test_a_published_policy_equals_its_literal_twin(recipes, instance, name, kind, clock, cost):
    found, server = both(instance, name, recipes, kind, clock, cost * (kind == "resumed"))
    assert found.check() == []
    if clock is None:
        assert attempts_of(found) == sorted(server.attempts)
        assert found.completions.tolist() == server.completions
        first = [
            time - arrival for time, arrival in zip(server.first, server.arrivals, strict=True)
        ]
        assert found.first_token_latencies.tolist() == first
        held = [content.held_tokens for _, _, content in server.batches]
        assert found.peak_memory == max(held)
    else:
        assert found.log.contents.tolist() == [list(content) for _, _, content in server.batches]
        assert found.completions.tolist() == server.completions
        assert found.first_tokens.tolist() == server.first
        assert found.preempted.tolist() == server.preempted
        assert found.preempted_tokens_by_request.tolist() == server.swapped
    assert found.preemptions == sum(server.preempted)
    assert found.facts.preemption == (kind if sum(server.preempted) else "none")


@examples(60)
@given(
    crowded(), st.sampled_from(["shortest_remaining", "limited"]), st.sampled_from([None, DYADIC])
)
def test_those_that_start_again_make_all_tokens_again(recipes, instance, name, clock):
    found, server = both(instance, name, recipes, "restarted", clock)
    assert found.check() == []
    if clock is None:
        assert attempts_of(found) == sorted(server.attempts)
        assert found.tokens.sum() == instance.outputs.sum() + found.preempted_tokens
    else:
        assert found.log.contents.tolist() == [list(content) for _, _, content in server.batches]
        assert found.first_tokens.tolist() == server.first
    assert found.facts.preemption == ("restarted" if sum(server.preempted) else "none")


def least_where_resumed(instance):
    """The least total latency where any requests that fit may make a token in a step."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    arrivals, count = instance.arrivals.tolist(), len(instance)
    paid = {(0,) * count: 0}
    best, step = float("inf"), 0
    while paid:
        after = {}
        for made, cost in paid.items():
            left = [i for i in range(count) if made[i] < outputs[i]]
            if not left:
                best = min(best, cost)
                continue
            here = [i for i in left if arrivals[i] <= step]
            for chosen in range(2 ** len(here)):
                run_now = [i for at, i in enumerate(here) if chosen >> at & 1]
                if sum(prompts[i] + made[i] + 1 for i in run_now) > instance.memory:
                    continue
                if here and not run_now:
                    continue
                new = tuple(m + (i in run_now) for i, m in enumerate(made))
                total = cost + len(here)
                if total < min(best, after.get(new, best)):
                    after[new] = total
        paid, step = after, step + 1
    return best


def test_the_closed_form_in_steps_bounds_all_that_resume():
    rng, below = np.random.default_rng(31), 0
    for _ in range(share(150)):
        count, memory = int(rng.integers(2, 4)), int(rng.integers(3, 9))
        outputs = rng.integers(1, min(5, memory) + 1, count)
        prompts = rng.integers(0, memory - outputs + 1)
        arrivals = np.sort(rng.integers(0, 5, count)) * int(rng.integers(2))
        instance = Instance(prompts, outputs, memory, arrivals)
        claim = bound(instance, "closed-form")
        assert claim.premises.preemption == "resumed"
        least = least_where_resumed(instance)
        assert claim.value <= least
        priced = bound(instance, "lagrangian")
        assert priced.premises.preemption == "restarted"
        below += least < optimum(instance)
    assert below >= share(150) / 50  # what resumes may do better than any schedule


@pytest.mark.parametrize("seed", range(16))
def test_the_bound_on_a_clock_bounds_all_that_resume(seed):
    """What is stopped moves away and back for nothing."""
    instance, clock = drawn(np.random.default_rng(seed), most=2 + (seed % 4 == 0))
    arrivals = arrival_times(instance, clock).tolist()
    best = least_latency(instance, clock, arrivals, instance.weights, preemption="resumed")
    for method in ("closed-form", "auto"):
        found = bound(instance, method, "weighted-latency", clock=clock)
        assert found.premises.preemption == "resumed"
        assert found.value <= best + EXACT


@pytest.fixture
def one_makes_way():
    """Draw a short request that comes while a long one runs, and fits only without it."""
    return Instance([1, 5], [8, 2], 9, [0, 3], seconds_per_step=1.0)


@pytest.mark.parametrize(
    ("kind", "completions", "tokens"),
    [("restarted", [12, 5], 3), ("recomputed", [10, 5], 3), ("resumed", [10, 5], 3)],
)
def test_what_is_kept_decides_what_is_made_again(
    one_makes_way, recipes, monkeypatch, kind, completions, tokens
):
    policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption=kind)
    found = run(one_makes_way, policy)
    assert found.completions.tolist() == completions
    assert (found.preemptions, found.preempted_tokens) == (1, tokens)
    assert found.metrics()["total_latency"] == found.total_latency == sum(completions) - 3
    assert found.first_token_latencies.tolist() == [5 if kind == "restarted" else 1, 1]
    assert f"3 tokens ({kind})" in str(found)
    timed = run(one_makes_way, policy, clock=get_clock("affine:1,0"))
    assert timed.completions.tolist() == completions
    assert f"4 tokens ({kind})" in str(timed)
    if kind == "restarted":
        assert found.schedule.starts.tolist() == [4, 3]
        return
    with pytest.raises(PolicyError, match="lets preempted requests go on, so that no schedule"):
        found.schedule  # noqa: B018
    assert found.to_pandas()["tokens"].tolist() == [3, 2, 5]
    seen = []
    monkeypatch.setattr("optsched.problem.execution.draw", lambda *content: seen.append(content))
    found.plot()
    assert seen[0][0] == "plot_schedule"
    assert seen[0][1].starts.tolist() == seen[0][1].instance.arrivals.tolist() == [0, 3, 5]


def test_moving_a_cache_back_takes_its_cost(one_makes_way, recipes):
    clock = LinearClock("mine", constant=1, prefill_tokens=0.5)
    policy = DecisionPolicy(
        "mine", "", recipes["shortest_remaining"], preemption="resumed", resume_cost=0.3
    )
    found = run(one_makes_way, policy, clock=clock)
    free = run(one_makes_way, replace(policy, resume_cost=0), clock=clock)
    assert found.completions[0] - free.completions[0] == 0.5 * -(-Fraction("0.3") * 4 // 1)
    assert found.completions[1] == free.completions[1]


def test_a_gap_is_shown_where_a_bound_covers_what_goes_on(one_makes_way, recipes):
    policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption="resumed")
    compared = compare(one_makes_way, [policy, "mc-sf"])
    prices, closed = compared.bounds
    assert compared.covering("mc-sf")[0].value == max(prices.value, closed.value)
    assert compared.covering("mine")[0] is closed
    assert 0 <= compared.gap("mine") < 1
    assert uncovered(prices.premises, compared["mine"].facts) == (
        "requests that are stopped are resumed, which the bound does not allow for"
    )
    assert [schedule.policy for schedule in compared.schedules] == ["mc-sf"]
    assert "mine: preempted requests go on where they were stopped" in str(compared)
    timed = compare(one_makes_way, [policy, "mc-sf"], clock="llama-2-7b-a100")
    assert 0 <= timed.gap("mine") < 1
    certificate = optsched.solve(one_makes_way).certificate
    if certificate is not None:
        assert strongest([certificate], compared["mine"].facts)[0] is None


def test_several_workers_each_preempt_on_their_own(recipes):
    rng = np.random.default_rng(5)
    preempted = 0
    for case in range(share(60)):
        count = 12
        outputs = rng.integers(1, 9, count)
        instance = Instance(
            rng.integers(0, 10, count),
            outputs,
            20,
            np.sort(rng.integers(0, 20, count)),
            seconds_per_step=0.5,
        )
        kind = ("restarted", "recomputed", "resumed")[case % 3]
        policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption=kind)
        options = {"clock": DYADIC} if case % 2 else {}
        router = ("least-kv", "least-tokens", "round-robin")[case // 2 % 3]
        found = run(instance, policy, workers=2, router=router, **options)
        assert found.check() == []
        assert found.unfinished == 0
        assert found.facts.preemption == (kind if found.preemptions else "none")
        assert np.nanmin(found.times_per_token) > 0
        preempted += found.preemptions
    assert preempted


def test_a_router_sees_what_was_kept(recipes):
    """A preempted request that waits has less left to do; the last one goes where least is left."""
    instance = Instance([1, 5, 1], [8, 2, 1], 9, [0, 3, 4])
    seen = []

    def look(state):
        seen.append(state.work.tolist())
        return 0

    policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption="resumed")
    run(instance, policy, workers=2, router=look)
    areas = instance.areas.tolist()
    assert seen[1][0] == areas[0] - (2 + 3 + 4)
    assert seen[2][0] == areas[0] - (2 + 3 + 4) + areas[1] - 6


def test_a_cluster_that_waits_is_refused(recipes):
    policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption="resumed")
    with pytest.raises(PolicyError, match="pass workers in place of the cluster, or a routing"):
        run(Instance([1], [1], 5), policy, cluster=optsched.Cluster(2, 2))


def test_a_run_that_is_stopped_is_the_beginning_of_the_whole(recipes):
    rng = np.random.default_rng(8)
    for case in range(share(60)):
        outputs = rng.integers(1, 9, 9)
        prompts, arrivals = rng.integers(0, 10, 9), np.sort(rng.integers(0, 12, 9))
        instance = Instance(prompts, outputs, 20, arrivals, seconds_per_step=0.5)
        kind = ("restarted", "recomputed", "resumed")[case % 3]
        policy = DecisionPolicy("mine", "", recipes["shortest_remaining"], preemption=kind)
        whole = run(instance, policy, clock=DYADIC)
        until = float(rng.uniform(0, whole.makespan))
        part = run(instance, policy, clock=DYADIC, until=until)
        rows = len(part.log.spans)
        assert part.check() == []
        assert part.log.contents.tolist() == whole.log.contents[:rows].tolist()
        done = (whole.last_batch >= 0) & (whole.last_batch < rows)
        assert part.completed.tolist() == done.tolist()
        if kind != "restarted":
            first = np.where(whole.first_batch < rows, whole.first_batch, -1)
            assert part.first_batch.tolist() == first.tolist()


@pytest.mark.few
def test_no_run_is_below_a_bound_that_covers_it(recipes):
    """In steps, on clocks and on several workers, with all that may be kept."""
    rng, covered = np.random.default_rng(12), 0
    for case in range(share(120)):
        count, memory = int(rng.integers(1, 9)), int(rng.integers(8, 30))
        outputs = rng.integers(1, min(memory - 1, 10) + 1, count)
        prompts, steps = rng.integers(1, memory - outputs + 1), rng.integers(0, 5, count)
        instance = Instance(prompts, outputs, memory, np.cumsum(steps), seconds_per_step=0.5)
        kind = ("restarted", "recomputed", "resumed")[case % 3]
        decide = recipes[RECIPES[case // 3 % 4]]
        policy = DecisionPolicy("mine", "", decide, preemption=kind)
        time = ({}, {"clock": "unit"}, {"clock": "llama-2-7b-a100"})[int(rng.integers(3))]
        place = ({}, {"workers": 2})[int(rng.integers(2))]
        found = run(instance, policy, patience=500, **time, **place)
        if found.unfinished:
            assert found.stall is not None
            assert kind == "restarted"
            continue
        assert found.check() == []
        claims = [bound(instance, method, **time, **place) for method in ("auto", "closed-form")]
        claim, why = strongest(claims, found.facts)
        assert claim is not None or ("workers" in place and not time), why
        if claim is not None:
            assert found.total_latency >= claim.value * (1 - EXACT)
            covered += found.preemptions
    assert effort.few or covered


def test_least_attained_that_starts_anew_is_given_up(recipes):
    instance = Instance([0] * 4, [9] * 4, 12)
    policy = DecisionPolicy("mine", "", recipes["least_attained"], preemption="restarted")
    assert run(instance, policy, patience=200).stall.idle_steps >= 200
    assert run(instance, replace(policy, preemption="resumed"), patience=3).unfinished == 0


@pytest.mark.parametrize(
    ("preempt", "message"),
    [
        ([1], "preempts request 1 at step 1, which waits; choose among state.running"),
        ([0, 0], "preempts request 0 at step 1, which it has just preempted; choose among"),
        ([7], "preempts request 7 at step 1, but there are only the requests 0 to 1"),
    ],
)
def test_only_what_runs_is_preempted(preempt, message):
    instance = Instance([1, 1], [3, 3], 5)

    def decide(state):
        return [0] if state.clock == 0 else Decision(preempt=preempt)

    policy = DecisionPolicy("mine", "", decide, preemption="resumed")
    with pytest.raises(PolicyError, match=f"policy 'mine' {message}"):
        run(instance, policy)
    unsaid = DecisionPolicy("mine", "", lambda s: Decision([], [0]) if s.clock else [0])
    with pytest.raises(PolicyError, match="but does not say what is kept of it; pass preemption="):
        run(instance, unsaid)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(PolicyError, match="unknown preemption: did you mean 'resumed'"):
        DecisionPolicy("mine", "", lambda state: [], preemption="resume")
    with pytest.raises(PolicyError, match="preempted requests are not resumed; pass preemption="):
        DecisionPolicy("mine", "", lambda state: [], resume_cost=1)
    with pytest.raises(PolicyError, match="resume_cost is -1, but must be at least 0"):
        DecisionPolicy("mine", "", lambda state: [], preemption="resumed", resume_cost=-1)


def test_one_that_preempts_is_asked_where_memory_overflows_and_none_waits():
    instance = Instance([0, 0], [6, 6], 8)
    seen = []

    def decide(state):
        seen.append((state.free, len(state.waiting)))
        return Decision.most_urgent(state, -np.arange(2))

    found = run(instance, DecisionPolicy("mine", "", decide, preemption="recomputed"))
    assert (-2, 0) in seen
    assert found.requests.tolist() == [0, 1, 0]  # the one started last would have gone


def test_a_state_says_what_fits_and_how_long_others_wait():
    instance = Instance([2, 3, 1], [4, 4, 4], 9, [0, 0, 1])
    seen = []

    def decide(state):
        seen.append((state.clock, state.waited.tolist(), state.fits(state.waiting)))
        fitting = [i for i in state.waiting if state.fits(i)]
        return fitting[:1]

    run(instance, DecisionPolicy("mine", "", decide))
    assert seen[0] == (0, [0, 0], True)
    assert seen[1] == (1, [1, 0], False)
    documented = State.__doc__.partition("Attributes")[2]
    for name in dir(State):
        if not name.startswith("_") and name not in ("made", "waited", "fits"):
            assert re.search(rf"^    (\w+, )?{name}(,|$)", documented, flags=re.M), name
    assert all(getattr(State, name).__doc__ for name in ("made", "waited", "fits"))
