"""The enumeration of a few requests against trying everything."""

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from strategies import instances

from optsched import Instance, OptschedError, Schedule, family, run
from optsched.search.exact.parts import solve_few
from optsched.search.exact.search import solve_exact


def one_by_one(instance, order):
    """Start requests one after another, with a pause."""
    step, starts = int(instance.arrivals[-1]), [0] * len(instance)
    for i in order:
        starts[i] = step
        step += int(instance.outputs[i]) + 1
    return Schedule(instance, starts)


@pytest.mark.few
@given(instances(max_requests=5, max_memory=16, max_arrival=6, max_output=5), st.data())
@examples(800)
def test_it_finds_an_optimum_from_any_schedule(instance, data):
    order = data.draw(st.permutations(range(len(instance))))
    found = solve_few(instance, one_by_one(instance, order))
    assert found.check() == []
    assert found.total_latency == optimum(instance)
    assert solve_few(instance, found) is found


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 0.5])
def test_it_finds_what_branch_and_bound_finds(rate):
    """Small memories of the test above are often full to the last token, these are hardly ever."""
    options = {} if rate is None else {"rate": rate}
    for seed in range(6):
        instance = family("uniform", n=5, seed=seed, **options)
        start = run(instance, "area").schedule
        found, known = solve_few(instance, start), solve_exact(instance)
        assert found.check() == []
        assert known.proven_optimal
        assert found.total_latency == known.lower


@pytest.mark.slow
def test_it_gives_up_where_there_is_more_work_or_someone_says_stop():
    instance = family("uniform", n=5, seed=1)
    start = run(instance, "fcfs").schedule
    assert solve_few(instance, start, work=1000) is None
    calls = []
    assert solve_few(instance, start, stop=lambda: calls.append(1) or len(calls) > 3) is None
    assert len(calls) == 4
    assert solve_few(instance, start).total_latency < start.total_latency


@pytest.mark.parametrize("deadlines", [None, [40] * 3])
def test_it_refuses_what_it_cannot_enumerate(deadlines):
    count = 13 if deadlines is None else 3
    instance = Instance([1] * count, [2] * count, 20, deadlines=deadlines)
    with pytest.raises(OptschedError, match=r"at most 12 without deadlines can be enumerated"):
        solve_few(instance, one_by_one(instance, range(count)))
