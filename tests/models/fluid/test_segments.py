"""Segments against every choice of borders, the integer program, and Nested WAIT's own bound."""

import itertools
import math

import numpy as np
import pytest

from optsched import InfeasibleError, RequestTypes
from optsched.errors import ModelError
from optsched.models import NestedWaitThresholds, SegmentDesign, design_segments, equilibrium

#: One request or more of each length from 1 to 500, fewer of the longer ones, as in chats.
CHAT = RequestTypes(
    [62] * 500, np.arange(1, 501), np.exp(-np.arange(1, 501) / 130) + 0.05, prefill_makes_token=True
)


def random_design(rng):
    count = int(rng.integers(1, 8))
    outputs = np.cumsum(rng.integers(1, 30, count))
    types = RequestTypes(
        [int(rng.integers(0, 40))] * count,
        outputs,
        rng.exponential(5, count) + 0.05,
        bool(rng.integers(2)),
    )
    return SegmentDesign(
        types,
        int(rng.integers(1, 200)),
        margin=float(rng.uniform(0.02, 0.5)),
        delta=float(rng.choice([0.1, 1e-5])),
        iterations=int(rng.integers(1, 10_000)),
    )


def literal_bound(design, borders):
    """What Nested WAIT's own program says of these borders, and the thresholds of the formula."""
    types = design.types
    tails = [types.rates[types.outputs > border].sum() for border in (-1, *borders[:-1])]
    thresholds = [
        max(1, math.ceil(design.first_threshold * (tail / tails[0]) ** (1 - design.margin) - 1e-9))
        for tail in tails
    ]
    # A clock that is fast enough for any thresholds: only the memory is asked for.
    rate = 1e-9 / types.rates.sum()
    program = NestedWaitThresholds(types.scaled(rate), "affine:1e-6,1e-9", borders)
    try:
        plan = program.plan(thresholds, delta=design.delta, iterations=design.iterations)
    except InfeasibleError:
        return math.inf
    return plan.memory_bound


@pytest.mark.slow
def test_the_shortest_path_is_the_best_of_all_borders():
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        design = random_design(rng)
        outputs = design.types.outputs.tolist()
        by_count = {}
        for count in range(1, len(outputs) + 1):
            bounds = {}
            for inner in itertools.combinations(outputs[:-1], count - 1):
                borders = [*inner, outputs[-1]]
                bounds[tuple(borders)] = literal_bound(design, borders)
                cost = design.cost(borders)
                assert math.isinf(cost) == math.isinf(bounds[tuple(borders)])
                assert math.isinf(cost) or abs(cost - bounds[tuple(borders)]) <= 1
            by_count[count] = min(bounds.values())
            if math.isinf(by_count[count]):
                refused += 1
                with pytest.raises(InfeasibleError, match=f"no borders of {count} segments keep"):
                    design.best(count)
                continue
            borders, bound = design.best(count)
            assert abs(bound - by_count[count]) <= 1
            assert abs(bounds[tuple(borders.tolist())] - bound) <= 1
        borders, bound = design.best()
        assert abs(bound - min(by_count.values())) <= 1
        assert abs(design.cost(borders) - bound) <= 1
    assert refused < 60


def test_memory_is_u_shaped_in_the_number_of_segments():
    """Least at 4 to 10 segments."""
    for first in (10, 20):
        design = SegmentDesign(CHAT, first, margin=0.05, iterations=200, delta=0.1)
        numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20]
        bounds = np.array(design.bounds(numbers), dtype=np.float64)
        assert np.isfinite(bounds).all()
        least = int(np.argmin(bounds))
        assert 4 <= numbers[least] <= 10
        assert (np.diff(bounds[: least + 1]) < 0).all()
        assert (np.diff(bounds[least:]) > 0).all()
        assert len(design.best()[0]) in range(4, 11)


@pytest.mark.slow
def test_a_design_keeps_up_and_fits_its_bound():
    for load in (0.2, 0.6):
        for segments in (None, 4):
            types = CHAT.scaled(load / equilibrium(CHAT, "llama-2-7b-a100").load)
            if load == 0.6 and segments == 4:
                continue  # four segments hold so many short requests too long that it is overload
            plan = design_segments(types, "llama-2-7b-a100", segments=segments)
            assert plan.slack > 0
            assert plan.iteration_time < plan.thresholds[0] / types.rates.sum()
            assert segments in (None, len(plan.thresholds))
            again = plan.program.plan(plan.thresholds)
            assert again.memory_bound == plan.memory_bound


@pytest.mark.slow
def test_too_few_segments_for_the_load_are_refused():
    types = CHAT.scaled(0.9 / equilibrium(CHAT, "llama-2-7b-a100").load)
    with pytest.raises(InfeasibleError, match=r"no first threshold .* margin 0.02 and 2 segments"):
        design_segments(types, "llama-2-7b-a100", segments=2)
    with pytest.raises(InfeasibleError, match="above 1, where any policy falls behind"):
        design_segments(types.scaled(2), "llama-2-7b-a100")


def test_many_lengths_leave_a_choice_of_borders():
    design = SegmentDesign(CHAT, 20)
    assert len(design.candidates) == 150
    assert design.candidates[[0, -1]].tolist() == [1, 500]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": RequestTypes([1, 2], [1, 2], [1, 1])}, "segments need types of one prompt"),
        ({"first_threshold": 0}, "first_threshold is 0, but must be at least 1"),
        ({"margin": 0}, "margin is 0, but must be above 0 and at most 1"),
        ({"delta": 1}, "delta is 1, but must be between 0 and 1"),
        ({"iterations": 0}, "iterations is 0, but must be at least 1"),
    ],
)
def test_bad_designs_are_refused_in_one_sentence(changes, message):
    types = RequestTypes([1] * 3, [4, 8, 12], [1, 1, 1])
    with pytest.raises(ModelError, match=message):
        SegmentDesign(**({"types": types, "first_threshold": 5} | changes))


def test_bad_borders_are_refused_in_one_sentence():
    design = SegmentDesign(RequestTypes([1] * 3, [4, 8, 12], [1, 1, 1]), 5)
    with pytest.raises(ModelError, match=r"the borders \[5, 12\] must ascend and be candidates"):
        design.cost([5, 12])
    with pytest.raises(ModelError, match="the last border must be the longest output, 12"):
        design.cost([4, 8])
    with pytest.raises(ModelError, match="there are 3 borders to choose from, not 4"):
        design.best(4)
