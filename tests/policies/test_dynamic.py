"""Keys of the moment under the rules of admission: equal to fixed orders and literal servers."""

import literal_preempting as literal
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import DYADIC, instances, predicted

from optsched import Instance, PriorityPolicy, forecast, run
from optsched.errors import PolicyError
from optsched.policies import DynamicPolicy

SIZES = {"max_requests": 9, "max_memory": 30, "max_arrival": 20, "max_output": 10}
RULES = {"prefix": (1, 1), "skip": (np.inf, 10**9), "window:1.4,2": (1.4, 2)}


def area(state):
    s, o = state.forecast.prompts, state.lower
    return (s * o + o * (o + 1) // 2)[state.waiting]


@examples(200)
@given(instances(**SIZES), st.sampled_from([*RULES, "window"]), st.sampled_from([None, DYADIC]))
def test_a_key_that_stays_is_a_fixed_order(instance, rule, clock):
    instance = instance.replace(seconds_per_step=0.5)
    options = {"rule": rule} | ({} if clock is None else {"clock": clock})
    found = run(instance, DynamicPolicy("area", "", area), **options)
    fixed = run(instance, PriorityPolicy("fixed", "", lambda each: each.areas), **options)
    assert found.preemptions == 0
    assert found.latencies.tolist() == fixed.latencies.tolist()


def aging(state):
    return state.lower[state.waiting] - 0.5 * state.waited


def response_ratio(state):
    return -1 - state.waited / state.lower[state.waiting]


LITERAL = {
    aging: lambda server, i: server.lower_of(i) - 0.5 * (server.now - server.since[i]),
    response_ratio: lambda server, i: -1 - (server.now - server.since[i]) / server.lower_of(i),
}


class Server(literal.Server):
    """One that knows what outputs are at least."""

    def lower_of(self, i):
        return max(self.lower[i], self.least[i])


@pytest.mark.few
@examples(200)
@given(
    predicted(instances(**SIZES)),
    st.sampled_from([aging, response_ratio]),
    st.sampled_from(sorted(RULES)),
    st.sampled_from(["none", "recomputed", "resumed"]),
    st.sampled_from([None, DYADIC]),
)
def test_an_order_of_the_moment_equals_its_literal_twin(instance, key, rule, kind, clock):
    instance = instance.replace(seconds_per_step=0.5)
    policy = DynamicPolicy("mine", "", key, rule=rule, preemption=kind)
    known = forecast(instance, "column")
    server = Server(instance, kind, 0, clock, (known.lower.tolist(), known.upper.tolist()))
    literal.serve(server, literal.planned(LITERAL[key], RULES[rule]))
    found = run(instance, policy, intervals="column", **({} if clock is None else {"clock": clock}))
    assert found.check() == []
    assert found.preemptions == sum(server.preempted)
    arrivals = server.arrivals
    late = [end - begin for end, begin in zip(server.completions, arrivals, strict=True)]
    assert found.latencies.tolist() == late


@pytest.mark.parametrize(("every", "asked"), [(1, 8), (3, 4), ("event", 6)])
def test_keys_are_computed_as_often_as_is_asked(every, asked):
    """Requests wait at the steps 0 to 7; 0, 3 and 6 start one, and one arrives at 4."""
    instance = Instance([0] * 4, [3, 3, 2, 2], 3, [0, 0, 0, 4])
    times = []

    def key(state):
        times.append(state.clock)
        return np.zeros(len(state.waiting))

    run(instance, DynamicPolicy("mine", "", key, every=every))
    assert len(times) == asked, times


def test_bad_keys_and_settings_are_refused_in_one_sentence():
    instance = Instance([1, 1], [2, 2], 9)
    with pytest.raises(
        PolicyError, match=r"key has shape \(1,\) and type .*, but must be one numb"
    ):
        run(instance, DynamicPolicy("mine", "", lambda state: np.zeros(1)))
    with pytest.raises(PolicyError, match="the key of request 1 is not a number"):
        run(instance, DynamicPolicy("mine", "", lambda state: np.array([0.0, np.nan])))
    with pytest.raises(PolicyError, match="the rule 'backfill' is not for keys that change"):
        run(instance, DynamicPolicy("mine", "", area), rule="backfill")
    with pytest.raises(
        PolicyError, match="every is 0, but must be a whole number of decisions, or 'event', as"
    ):
        DynamicPolicy("mine", "", area, every=0)


def test_noise_follows_the_seed_of_the_run():
    rng = np.random.default_rng(0)
    instance = Instance([0] * 30, rng.integers(1, 30, 30), 40)

    def learned(state):
        noise = np.random.default_rng(state.seed).normal(size=len(state.forecast))
        return (state.forecast.upper * np.exp(noise))[state.waiting]

    policy = DynamicPolicy("learned", "", learned)
    totals = [run(instance, policy, seed=seed).total_latency for seed in (1, 1, 2, 3)]
    assert totals[0] == totals[1]
    assert len(set(totals)) == 3
