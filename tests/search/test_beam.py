"""The beam: nodes judged by the definition, feasible schedules, better than local moves alone."""

import threading

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import OptschedError, Schedule, bound, family, run
from optsched._internal.aside import Budget
from optsched.bounds.bound import coarse_prices, smoothed
from optsched.bounds.lagrangian import certify
from optsched.problem.costs import StartCosts
from optsched.search.beam import Background, Beam, _Runs, background_of, slices, start_by_beam
from optsched.search.beam_kernels import BASE, DONE, NODES, REACH, SLICE
from optsched.search.search import search


def _certificate(instance, objective="total-latency"):
    return bound(instance, "lagrangian", objective).certificate


@pytest.mark.few
@given(instances(max_requests=8, max_memory=30, max_arrival=20), st.integers(0, 9), st.data())
@examples(40)
def test_schedules_are_feasible_and_the_same_for_a_seed(instance, seed, data):
    weight = st.sampled_from([0.5, 1, 3])
    instance = instance.replace(weights=[data.draw(weight) for _ in range(len(instance))])
    certificate = _certificate(instance, "weighted-latency")
    start = run(instance, "fcfs").schedule
    found = start_by_beam(start, certificate, Budget(work=1e7), seed=seed)
    assert found.check() == []
    again = start_by_beam(start, certificate, Budget(work=1e7), seed=seed, threads=2)
    assert np.array_equal(again.starts, found.starts)


def _held(instance, starts, chosen, step):
    """Count the tokens that some requests hold at a step."""
    return sum(
        int(instance.prompts[i]) + step - int(starts[i])
        for i in chosen
        if starts[i] >= 0 and starts[i] < step <= starts[i] + instance.outputs[i]
    )


def _price(prices, step):
    return prices[step - 1] if step <= len(prices) else 0.0


def _cost(instance, weights, prices, request, start):
    """Latency and priced memory of a start, by the definition."""
    prompt, output = int(instance.prompts[request]), int(instance.outputs[request])
    paid = sum((prompt + u) * _price(prices, start + u) for u in range(1, output + 1))
    return weights[request] * (start + output - instance.arrivals[request]) + paid


def _beams(data, instance):
    """Draw prices and slices, and make a beam beside the smaller requests of a schedule."""
    count = len(instance)
    weights = np.array([data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in range(count)])
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    price = st.sampled_from([0.0, 0.1, 0.25, 1.0])
    prices = np.array([data.draw(price) for _ in range(data.draw(st.integers(1, horizon)))])
    schedule = run(instance, "area").schedule
    small, background = background_of(schedule, data.draw(st.sampled_from([0.0, 0.4])))
    begins = slices(schedule.starts[~small], data.draw(st.sampled_from([0.3, 1.0])))
    width = data.draw(st.integers(1, 12))
    beam = Beam(instance, weights, prices, ~small, background, begins, width)
    return beam, weights, prices, np.flatnonzero(~small), np.flatnonzero(small), background


def _ahead(beam, node, begin):
    """Return what a node holds from the begin of its slice on."""
    base, reach = beam.counts[[BASE, REACH]]
    return beam.nodes.usage[beam.counts[SLICE] % 2, node, begin - base : begin - base + reach]


@given(instances(max_requests=6, max_memory=16, max_arrival=8, max_output=5), st.data())
@examples(60)
def test_nodes_are_judged_by_regrets_and_idle_memory(instance, data):
    beam, weights, prices, large, small, background = _beams(data, instance)
    least = {}
    for request in large.tolist():
        last = int(beam.large.begins[-1]) + 1
        costs = [_cost(instance, weights, prices, request, k) for k in range(last)]
        least[request] = [min(costs[k:]) for k in range(last)]
    beam.prepare(Budget())
    rows = len(beam.large.later) - 1
    for row in range(1, len(beam.large.begins) - 1):
        if beam.counts[DONE]:  # the cheapest node has started everything
            break
        if (row - 1) % rows == 0:
            beam.load_chunk()
        beam.step(row, Budget(), np.inf)
        end, side, number = int(beam.large.begins[row]), row % 2, int(beam.counts[NODES])
        assert len(set(beam.nodes.hashes[side, :number].tolist())) == number
        differences = []
        for node in range(number):
            starts = np.full(len(instance), -1)
            starts[large] = beam.starts(node)
            usage = _ahead(beam, node, end)
            for step in range(1, len(usage)):
                held = _held(instance, starts, large, end + step)
                held += _held(instance, background.starts, small, end + step)
                assert usage[step] == held
                assert held <= instance.memory
            judged = 0.0
            for request in large.tolist():
                if starts[request] >= 0:
                    assert starts[request] >= instance.arrivals[request]
                    cost = _cost(instance, weights, prices, request, int(starts[request]))
                else:
                    cost = least[request][max(end, int(instance.arrivals[request]))]
                judged += cost - least[request][int(instance.arrivals[request])]  # its regret
            # Idle memory so far, less that of an empty node, which is the same for all.
            for step in range(1, end + 1):
                judged -= _price(prices, step) * _held(instance, starts, large, step)
            differences.append(beam.nodes.values[side, node] - judged)
        assert np.ptp(differences) == pytest.approx(0, abs=1e-3)


@given(instances(max_requests=7, max_memory=16, max_arrival=8, max_output=6), st.data())
@examples(60)
def test_no_request_fits_before_its_earliest_start(instance, data):
    beam, _, _, large, _, _ = _beams(data, instance)
    beam.prepare(Budget())
    rows = len(beam.large.later) - 1
    for row in range(1, len(beam.large.begins) - 1):
        if beam.counts[DONE]:
            break
        if (row - 1) % rows == 0:
            beam.load_chunk()
        beam.step(row, Budget(), np.inf)
        begin, side = int(beam.large.begins[row]), row % 2
        for node in range(int(beam.counts[NODES])):
            usage, starts = _ahead(beam, node, begin), beam.starts(node)
            for place, request in enumerate(large.tolist()):
                first = max(begin, int(instance.arrivals[request]))
                earliest = int(beam.nodes.earliest[side, node, place])
                for start in range(first, earliest if starts[place] < 0 else first):
                    peak = max(
                        int(instance.prompts[request])
                        + step
                        + (
                            int(usage[start + step - begin])
                            if start + step - begin < len(usage)
                            else 0
                        )
                        for step in range(1, int(instance.outputs[request]) + 1)
                    )
                    assert peak > instance.memory


@pytest.mark.few
@given(instances(max_requests=7, max_memory=16, max_arrival=12, max_output=6), st.data())
@examples(60)
def test_a_beam_starts_everything_once(instance, data):
    beam, _, _, large, _, background = _beams(data, instance)
    found, work = beam.follow(Budget(), np.inf)
    starts = background.starts.copy()
    starts[large] = found
    assert Schedule(instance, starts).check() == []
    assert work > 0


def test_a_beam_that_is_late_goes_on_with_less_width(monkeypatch):
    instance = family("chat-and-summaries", n=300, seed=1)
    schedule = run(instance, "area").schedule
    small, background = background_of(schedule, 0.5)
    begins, prices = slices(schedule.starts[~small], 0.2), _certificate(instance)
    prices = np.array(prices.prices) / prices.denominator
    clock, step = [0.0], Beam.step

    def work(*arguments):
        done = step(*arguments)
        clock[0] += done
        return done

    monkeypatch.setattr("optsched.search.beam.stopwatch", lambda: clock[0])
    monkeypatch.setattr(Beam, "step", work)

    def follow(deadline):
        clock[0] = 0.0
        beam = Beam(instance, np.ones(300), prices, ~small, background, begins, 60)
        return beam.follow(Budget(deadline=deadline), np.inf)[0], clock[0]

    _, whole = follow(np.inf)
    for share, most in (0.85, 0.85), (0.3, 0.33):
        starts, done = follow(share * whole)
        found = background.starts.copy()
        found[~small] = starts
        assert Schedule(instance, found).check() == []
        assert done < most * whole


@pytest.mark.parametrize(("name", "gains"), [("chat-and-summaries", True), ("mixed", False)])
def test_offline_width_goes_before_a_choice_where_the_first_run_gains(monkeypatch, name, gains):
    instance = family(name, n=400, seed=1)
    calls, follow = [], _Runs.follow

    def counted(runs, settings, width):
        calls.append((len(settings), width))
        if len(calls) == 2:
            raise KeyboardInterrupt  # the rest of its work says nothing more
        follow(runs, settings, width)

    monkeypatch.setattr(_Runs, "follow", counted)
    start = search(
        run(instance, "area").schedule, StartCosts.plain(np.ones(400)), Budget(work=1e8), seed=1
    ).schedule
    with pytest.raises(KeyboardInterrupt):
        start_by_beam(start, _certificate(instance), Budget(work=2e9), seed=1)
    first, (settings, width) = calls
    assert first == (1, 10)
    if gains:
        assert settings <= 2
        assert width > 100
    else:
        assert settings >= 8


def test_a_background_without_room_is_refused():
    instance = family("uniform", n=6, seed=0)
    held = np.array([0, 5, instance.memory + 1], dtype=np.int32)
    with pytest.raises(OptschedError, match="holds 101 tokens at step 2, but the memory is 100"):
        Beam(
            instance,
            np.ones(6),
            np.ones(4),
            np.ones(6, dtype=bool),
            Background(instance.arrivals, held),
            np.array([0, 2, 4]),
            3,
        )


def test_slices_cover_the_starts_in_parts():
    begins = slices(np.array([0, 0, 3, 40]), 0.5)
    assert begins[0] == 0
    assert begins[-1] == 41
    assert (np.diff(begins) > 0).all()
    assert len(begins) > np.count_nonzero(begins >= 20) > 1


def test_small_requests_start_as_they_arrive_where_there_is_room():
    crowded = family("uniform", n=60, seed=0, load=2.0)
    schedule = run(crowded, "area").schedule
    small, background = background_of(schedule, 0.5)
    assert np.array_equal(background.starts[small], schedule.starts[small])
    roomy = family("chat-and-summaries", n=100, seed=0, load=0.9)
    small, background = background_of(run(roomy, "area").schedule, 0.5)
    assert np.array_equal(background.starts[small], roomy.arrivals[small])
    assert background.usage.max() <= roomy.memory / 2


@pytest.mark.slow
@pytest.mark.parametrize(("n", "load"), [(300, None), (500, 1.1)])
def test_a_beam_beats_local_moves_at_equal_work(n, load):
    instance = family("chat-and-summaries", n=n, seed=0, load=load)
    area, work = run(instance, "area").schedule, 2e8
    first = search(area, StartCosts.plain(np.ones(n)), Budget(work=0.2 * work)).schedule
    found = start_by_beam(first, _certificate(instance), Budget(work=0.5 * work))
    beamed = search(found, StartCosts.plain(np.ones(n)), Budget(work=0.3 * work)).schedule
    assert beamed.check() == []
    moved = search(area, StartCosts.plain(np.ones(n)), Budget(work=work)).schedule
    assert beamed.total_latency < moved.total_latency


def test_what_ends_a_search_leaves_the_start():
    instance = family("chat-and-summaries", n=2000, seed=0, load=1.1)
    area, stop = run(instance, "area").schedule, threading.Event()
    certificate = _certificate(instance)
    late = start_by_beam(area, certificate, Budget(work=1e12, deadline=0.0))
    assert late == area
    stop.set()
    assert start_by_beam(area, certificate, Budget(work=1e12, stop=stop)) == area
    assert start_by_beam(area, certificate, Budget(work=1.0)) == area


def test_prices_on_a_coarse_grid_beat_those_of_the_relaxation():
    instance = family("chat-and-summaries", n=500, seed=0, load=1.1)
    area = run(instance, "area").schedule
    large = np.ones(500, dtype=bool)
    prices, cell, work = coarse_prices(area, "total-latency", large, instance.memory, rounds=100)
    assert cell > 1
    assert work < 1e8
    coarse = certify(instance, smoothed(prices, cell), area.starts)
    assert coarse.value > bound(instance, "lagrangian").value


def test_smoothed_prices_are_means():
    assert smoothed(np.array([0.0, 3.0, 6.0, 0.0]), 2).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert smoothed(np.array([1.0, 2.0]), 1).tolist() == [1.0, 2.0]
