"""Theorem 6.2 of Jaillet et al. with interruption: closed forms beside steps, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from optsched import Instance, Schedule, family, run
from optsched_papers.jaillet.interruption import (
    Adversary,
    after_shorts,
    again,
    one_fewer,
    paused,
    restarting,
    short_first,
    weighing,
)

small = st.builds(
    lambda inverse, scale: Adversary(inverse, scale * inverse),
    st.integers(3, 7),
    st.integers(2, 12),
)


def restart(of, threshold, batches):
    """Start the long request anew for so many waiting ones; return the total latency of all.

    `batches` are numbers of short ones: each comes when the long one has come to the age at which
    they are sent, and the first of them that it has not had yet.
    """
    step, age, waiting, latency, batches = 0, 0, [], 0, list(batches)
    come = []
    while True:
        if age == of.gap and batches:
            count = batches.pop(0)
            waiting += [step] * count
            come += [step] * count
            if count >= threshold:
                age = 0
        if age == 0:
            while waiting:
                together = of.memory // (of.shorts + 1)
                latency += sum(step + 1 - arrival for arrival in waiting[:together])
                waiting = waiting[together:]
                step += 1
        step, age = step + 1, age + 1
        assert of.shorts + age <= of.memory
        assert age <= of.gap or of.shorts + age + of.shorts + 1 > of.memory  # none fits beside it
        if age == of.output:
            latency += step
            break
    while waiting:
        together = of.memory // (of.shorts + 1)
        latency += sum(step + 1 - arrival for arrival in waiting[:together])
        waiting, step = waiting[together:], step + 1
    assert not batches
    return latency, come


def instance_of(of, come):
    """Return the long request and the short ones that came."""
    count = 1 + len(come)
    outputs = [of.output] + [1] * len(come)
    return Instance([of.shorts] * count, outputs, of.memory, arrivals=[0, *come])


def short_at_once(of, come, long):
    """Start the long request then and the short ones as soon as they fit beside what runs."""
    together = of.memory // (of.shorts + 1)
    starts, used = [], {}
    for arrival in come:
        step = arrival
        while used.get(step, 0) == together or long <= step < long + of.output:
            step += 1
        used[step] = used.get(step, 0) + 1
        starts.append(step)
    return Schedule(instance_of(of, come), np.array([long, *starts]))


@given(small, st.integers(1, 20), st.integers(1, 4))
@examples(60)
def test_short_ones_that_come_again_and_again(of, threshold, rounds):
    online, known = (int(each[0]) for each in again(of, np.array([threshold]), rounds))
    latency, come = restart(of, threshold, [threshold] * rounds)
    assert online == latency
    schedule = short_at_once(of, come, 0)
    assert schedule.check() == []
    assert known == min(latency, schedule.total_latency)


@given(small, st.integers(1, 20))
@examples(60)
def test_one_short_request_fewer_than_it_takes(of, threshold):
    online, known = (int(each[0]) for each in one_fewer(of, np.array([threshold])))
    few = min(threshold - 1, of.shorts)
    latency, come = restart(of, threshold, [few])
    assert online == latency
    steps = int(of.serve(few)[1])
    schedule = short_at_once(of, come, of.gap + steps)
    assert schedule.check() == []
    assert known == min(latency, schedule.total_latency)


@given(small, st.integers(1, 30))
@examples(60)
def test_lost_steps_are_weighed_against_the_wait(of, count):
    """Restart while the steps lost are at most count * shorts, then go on; the last batch waits."""
    restarts = 0
    while (restarts + 1) * of.gap <= count * of.shorts:
        restarts += 1
    repeated, come = restart(of, count, [count] * restarts) if restarts else (of.output, [])
    steps = int(of.serve(count)[1])
    begin = restarts * (of.gap + steps)
    come = [*come, *[begin + of.gap] * count]
    waits = short_at_once(of, come, begin)
    late = short_at_once(of, come, begin + of.gap + steps)
    early = short_at_once(of, come, 0)
    assert waits.check() == late.check() == early.check() == []
    assert repeated == waits.total_latency - sum(
        int(waits.starts[-each]) + 1 - come[-each] for each in range(1, count + 1)
    )
    known = min(each.total_latency for each in (waits, late, early))
    assert weighing(of, np.array([count]))[0] == pytest.approx(waits.total_latency / known)


@given(small, st.integers(1, 12))
@examples(30)
def test_ratios_are_above_the_optimum_of_all_thresholds(of, threshold):
    ratio = restarting(of, np.array([threshold]))[0]
    assert ratio >= 1
    for rounds in (1, 2, 4):
        online, known = again(of, np.array([threshold]), rounds)
        assert ratio >= online[0] / known[0]


@pytest.mark.parametrize("inverse", [4, 8])
def test_printed_arrivals_do_not_hurt_who_starts_anew(inverse):
    of = Adversary(inverse, 4 * inverse**3)
    instance = family("jaillet-theorem-6-2", n=of.shorts + 1, memory=of.memory)
    offline = short_first(instance)
    assert offline.check() == []
    assert 1 <= after_shorts(of, of.shorts) / offline.total_latency < 1.01
    assert after_shorts(of, of.shorts) == restart(of, of.shorts, [of.shorts])[0]
    assert of.beside == 0
    one_by_one = instance.take(range(1, of.shorts + 1)).replace(memory=of.shorts + 1, arrivals=None)
    short_ones = run(one_by_one, "fcfs").total_latency
    assert paused(of) == short_ones + of.gap + of.shorts + (of.output - of.gap)
