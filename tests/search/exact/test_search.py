"""The exact search against brute force; stopped anywhere, its interval holds."""

import effort
import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from priced_instances import TINY, certificates
from strategies import instances

from optsched import Instance, OptschedError, Schedule, family, run
from optsched.bounds.configurations import configuration_bound
from optsched.certificates.prices import ConfigurationCertificate
from optsched.errors import CertificateError, ScheduleError
from optsched.models.program import Stopped
from optsched.search.exact import search
from optsched.search.exact.search import solve_exact


@pytest.mark.few
@given(instances(max_requests=5, max_memory=16, max_arrival=6, max_output=5), st.integers(0, 40))
@examples(500)
def test_the_search_finds_and_proves_the_optimum(instance, iterations):
    certificate = configuration_bound(instance, phases=3, iterations=iterations).certificate
    result = solve_exact(instance, certificate=certificate)
    assert result.schedule.check() == []
    assert result.proven_optimal
    assert result.stopped is Stopped.OPTIMAL
    assert result.schedule.total_latency == result.lower == optimum(instance)


@pytest.mark.few
@given(certificates(**TINY), st.data())
@examples(300)
def test_any_certificate_and_any_schedule_to_start_from_will_do(case, data):
    instance, certificate = case
    order = data.draw(st.permutations(range(len(instance))))
    step, starts = int(instance.arrivals[-1]), [0] * len(instance)
    for i in order:  # one after another, with a pause
        starts[i] = step
        step += int(instance.outputs[i]) + 1
    result = solve_exact(instance, upper=Schedule(instance, starts), certificate=certificate)
    assert result.schedule.check() == []
    assert result.schedule.total_latency == result.lower == optimum(instance)


@given(
    st.integers(2, 3),
    st.integers(0, 2),
    st.integers(1, 3),
    st.lists(st.integers(0, 5), min_size=3, max_size=6),
)
def test_equal_requests_start_in_order_of_arrival(kinds, prompt, output, arrivals):
    count = len(arrivals)
    instance = Instance(
        [prompt + i % kinds for i in range(count)], [output] * count, 9, sorted(arrivals)
    )
    assert solve_exact(instance).lower == optimum(instance)


@given(instances(**TINY), st.integers(0, 30))
def test_stopped_after_any_number_of_nodes_the_interval_holds(instance, nodes):
    certificate = configuration_bound(instance, iterations=0).certificate
    result = solve_exact(instance, certificate=certificate, node_limit=nodes)
    assert result.schedule.check() == []
    assert result.lower <= optimum(instance) <= result.schedule.total_latency
    again = solve_exact(instance, certificate=certificate, node_limit=nodes)
    assert (again.schedule, again.lower, again.nodes, again.stopped) == (
        result.schedule,
        result.lower,
        result.nodes,
        result.stopped,
    )


@pytest.mark.few
@pytest.mark.no_cover
@pytest.mark.parametrize("arrivals", [False, True])
def test_a_pass_that_loses_what_there_is_no_time_for_leaves_a_valid_interval(monkeypatch, arrivals):
    monkeypatch.setattr(search, "_WIDTHS", (2, 5, 8))
    monkeypatch.setattr(search, "_ENOUGH", 1)
    rng = np.random.default_rng(int(arrivals))
    shortened = 0
    for _ in range(share(250)):
        outputs, prompts = rng.integers(1, 6, 7), rng.integers(0, 4, 7)
        steps = np.sort(rng.integers(0, 6 * arrivals + 1, 7))
        instance = Instance(prompts, outputs, 9, steps)
        certificate = configuration_bound(instance, iterations=0).certificate
        late = Schedule(instance, steps[-1] + np.cumsum(outputs + 1) - outputs)
        whole = solve_exact(instance, upper=late, certificate=certificate)
        assert whole.proven_optimal
        limit = int(whole.nodes * rng.uniform(0.3, 0.9))
        found = solve_exact(instance, upper=late, certificate=certificate, node_limit=limit)
        assert found.schedule.check() == []
        assert found.lower <= whole.lower <= found.schedule.total_latency
        if not found.proven_optimal:
            assert found.stopped is Stopped.ITERATION_LIMIT
            shortened += found.nodes < limit
    # Passes that lost nodes on purpose and came to their end.
    assert effort.few or shortened > share(250) / 50


@pytest.fixture(scope="module")
def hard():
    """An instance of eight requests that many nodes are needed for, with a loose certificate."""
    instance = family("uniform", n=8, seed=0)
    return instance, configuration_bound(instance, iterations=100).certificate


@pytest.mark.slow
def test_limits_are_named_and_leave_a_valid_interval(hard):
    instance, certificate = hard
    full = solve_exact(instance, certificate=certificate)
    assert full.proven_optimal
    assert full.schedule.total_latency == 478
    for limit, reason in (
        ({"time_limit": 0.0}, Stopped.TIME_LIMIT),
        ({"node_limit": 5000}, Stopped.ITERATION_LIMIT),
        ({"memory_limit": 110_000}, Stopped.MEMORY_LIMIT),
    ):
        result = solve_exact(instance, certificate=certificate, **limit)
        assert result.stopped is reason
        assert not result.proven_optimal
        assert result.lower <= 478 <= result.schedule.total_latency
        assert result.nodes < full.nodes


@pytest.mark.parametrize("calls", [1, 10, 30])
def test_an_interrupt_leaves_a_valid_interval(hard, calls):
    instance, certificate = hard
    seen = []

    def interrupt(seconds, lower, best):
        seen.append((lower, best))
        if len(seen) == calls:
            raise KeyboardInterrupt

    result = solve_exact(instance, certificate=certificate, on_progress=interrupt)
    assert result.stopped is Stopped.INTERRUPTED
    assert result.lower <= 478 <= result.schedule.total_latency
    assert [lower for lower, _ in seen] == sorted(lower for lower, _ in seen)
    assert [best for _, best in seen] == sorted((best for _, best in seen), reverse=True)


def test_a_long_pause_between_arrivals_is_crossed():
    instance = Instance([2, 2, 2], [3, 3, 3], memory=6, arrivals=[0, 500, 500])
    result = solve_exact(instance)
    assert result.proven_optimal
    assert result.lower == optimum(Instance([2, 2, 2], [3, 3, 3], 6, [0, 9, 9]))


def test_what_the_search_cannot_do_is_refused():
    instance = Instance([1, 1], [2, 2], memory=3)
    with pytest.raises(OptschedError, match="does not support deadlines"):
        solve_exact(instance.replace(deadlines=[9, 9]))
    with pytest.raises(OptschedError, match=r"memory_limit is 100 bytes, but .* at least \d+"):
        solve_exact(instance, memory_limit=100)
    with pytest.raises(ScheduleError, match="infeasible or of another instance"):
        solve_exact(instance, upper=Schedule(instance, [0, 0]))
    with pytest.raises(ScheduleError, match="infeasible or of another instance"):
        solve_exact(instance, upper=run(instance.replace(memory=4), "area").schedule)
    huge = ConfigurationCertificate(10**30, 1, (), (), (), instance.fingerprint)
    with pytest.raises(OptschedError, match="too large for 64-bit integers"):
        solve_exact(instance, certificate=huge)
    foreign = configuration_bound(instance.replace(memory=4)).certificate
    with pytest.raises(CertificateError, match="belongs to another instance"):
        solve_exact(instance, certificate=foreign)


def test_a_certificate_without_prices_only_makes_it_slower():
    instance = Instance([3, 1, 2, 2], [2, 3, 1, 4], memory=7)
    empty = ConfigurationCertificate(1, 1, (), (), (), instance.fingerprint)
    result = solve_exact(instance, certificate=empty)
    assert result.proven_optimal
    assert result.lower == solve_exact(instance).lower == optimum(instance)
