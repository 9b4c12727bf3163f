"""Scenarios: their simulation against a literal one, and what they overrule."""

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from optsched import Instance, PriorityPolicy, run
from optsched.models import Running
from optsched.rolling.scenarios import Past, _keys_of, _sum_of_starts, plan_is_worse
from optsched.rolling.window import Window


def literal_sum(prompts, outputs, arrivals, memory, load, now, order):
    """Step by step: admit in order while all future steps hold, stop at the first that does not."""
    here, count = len(now), len(prompts)
    arrives = [0] * here + arrivals.tolist()
    starts = {i: 0 for i in range(here) if now[i]}

    def held(step, extra):
        running = load[step - 1] if step <= len(load) else 0
        return running + sum(
            prompts[i] + step - k
            for i, k in (*starts.items(), *extra)
            if k < step <= k + outputs[i]
        )

    forced = set(starts)
    step = 0
    while len(starts) < count:
        for i in order:
            if i in starts or arrives[i] > step:
                continue
            ends = range(step + 1, step + outputs[i] + 1)
            if any(held(end, [(i, step)]) > memory for end in ends):
                break
            starts[i] = step
        step += 1
    return sum(k for i, k in starts.items() if i not in forced)


@given(st.data())
@examples(120)
def test_scenarios_are_simulated_as_by_the_definition(data):
    here, coming = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    memory, count = 14, here + coming
    outputs = np.array(data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)))
    prompts = np.array([data.draw(st.integers(0, memory - int(o))) for o in outputs])
    arrivals = np.array(
        sorted(data.draw(st.lists(st.integers(1, 9), min_size=coming, max_size=coming)))
    )
    load = Running([2], [data.draw(st.integers(1, 3))]).load(3)
    now = np.zeros(here, dtype=bool)
    now[0] = prompts[0] + outputs[0] + load.max() <= memory and data.draw(st.booleans())
    order = np.array(data.draw(st.permutations(range(count))))
    arguments = (prompts, outputs, arrivals, memory, load, now, order)
    assert _sum_of_starts(*arguments) == literal_sum(*arguments)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_keys_put_a_window_into_the_order_of_its_starts(pairs):
    starts, keys = (np.array(column) for column in zip(*pairs, strict=True))
    order = np.argsort(_keys_of(starts, keys.astype(float)), kind="stable")
    assert (np.diff(starts[order]) >= 0).all()
    assert (_keys_of(starts, keys.astype(float)) >= keys).all()


def window_of(prompts, outputs, memory):
    none = Running([], [])
    size = len(prompts)
    return Window(
        prompts=np.array(prompts),
        outputs=np.array(outputs),
        memory=memory,
        running=none,
        prices=np.zeros(0),
        order=np.arange(size),
        hint=np.full(size, -1),
        seconds=1.0,
        seed=1,
    )


def test_a_giant_before_all_others_is_overruled():
    # Four short ones fill the memory; beside the giant one of them can run at a time at most.
    window = window_of([20, 20, 20, 20, 50], [4, 4, 4, 4, 40], 100)
    keys = np.array([90.0, 90.0, 90.0, 90.0, 5000.0])
    past = Past(np.full(50, 20), np.full(50, 4), np.full(50, 90.0), rate=0.5)
    giant_first = np.array([40, 40, 40, 40, 0])
    giant_later = np.array([0, 0, 0, 0, 4])
    assert plan_is_worse(window, keys, giant_first, giant_later, past, 8, np.inf)
    assert not plan_is_worse(window, keys, giant_later, giant_first, past, 8, np.inf)
    assert not plan_is_worse(window, keys, giant_later, giant_later, past, 8, np.inf)
    assert not plan_is_worse(window, keys, giant_first, giant_later, past, 8, 0.0)  # no time


def test_without_arrivals_a_future_is_a_run():
    rng = np.random.default_rng(2)
    for _ in range(20):
        outputs, prompts = rng.integers(1, 9, 12), rng.integers(0, 20, 12)
        instance = Instance(prompts, outputs, 40)
        key = PriorityPolicy("k", "", lambda i: i.areas)
        order = key.order(instance)
        total = _sum_of_starts(
            np.append(prompts, 1),
            np.append(outputs, 1),
            np.array([10**4]),
            40,
            np.zeros(0, dtype=np.int64),
            np.zeros(12, dtype=bool),
            np.append(order, 12),
        )
        assert total - 10**4 == run(instance, key).schedule.starts.sum()
