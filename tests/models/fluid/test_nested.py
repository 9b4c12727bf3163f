"""Nested WAIT: integer program, fixed point, Lemma 8 and memory stage by stage."""

import math

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from optsched import InfeasibleError, RequestTypes, solve
from optsched.clock import affine
from optsched.errors import InstanceError, ModelError
from optsched.models import NestedWaitThresholds, WaitThresholds, equilibrium, queue_decay

CLOCK = "affine:0.0085,2.7e-7"
SYNTHETIC = RequestTypes([10] * 4, [20, 40, 80, 160], [20, 40, 80, 160])
#: Section 6.2: ten bins of 50 tokens, and the arrivals per bin.
BINS = RequestTypes([60] * 10, np.arange(50, 501, 50), [23, 11, 8, 7, 6, 4, 3, 2, 1, 1])


def random_program(rng):
    count = rng.integers(1, 6)
    outputs = np.cumsum(rng.integers(1, 20, count))
    types = RequestTypes(
        [int(rng.integers(0, 30))] * count,
        outputs,
        np.round(rng.exponential(5, count) + 0.05, 3),
        bool(rng.integers(2)),
    )
    clock = affine(0.01, 1e-5)
    types = types.scaled(rng.uniform(0.05, 0.6) / equilibrium(types, clock).load)
    cut = rng.random(count) < 0.7
    cut[-1] = True
    return NestedWaitThresholds(types, clock, outputs[cut], margin=float(rng.uniform(0.02, 0.2)))


def literal_memory(program, thresholds):
    """Sum the tokens of every stage of every segment."""
    prompt, before, total = int(program.types.prompts[0]), program.types.first_stage - 1, 0
    for border, count in zip(program.borders.tolist(), thresholds, strict=True):
        total += sum(int(count) * (prompt + stage) for stage in range(before + 1, border + 1))
        before = border
    return total


def literal_rates(program):
    before = np.append(-1, program.borders[:-1])
    return [float(program.types.rates[program.types.outputs > border].sum()) for border in before]


@pytest.mark.few
def test_the_integer_program_is_the_least_fixed_point():
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(share(150)):
        program = random_program(rng)
        try:
            fixed = program.least_fixed_point()
        except InfeasibleError:
            assert solve(program.to_linear()).values is None
            continue
        solved += 1
        model = program.to_linear()
        solution = solve(model)
        assert solution.proven_optimal
        assert np.array_equal(program.read(solution.values), fixed)
        assert not model.violations(program.write_point(fixed))
        plan = program.plan(fixed)
        assert plan.memory == round(solution.objective) == literal_memory(program, fixed)
        assert math.isclose(plan.iteration_time, 0.01 + 1e-5 * plan.memory)
        rates = literal_rates(program)
        assert np.allclose(program.rates, rates)
        assert plan.iteration_time < fixed[0] / rates[0]
        for i in range(1, len(fixed)):
            assert fixed[i] > fixed[i - 1] * rates[i] / rates[i - 1]
    assert solved > share(150) * 2 / 3


@given(st.integers(2, 3000), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
@examples(300)
def test_the_decay_is_the_root_of_lemma_8(previous, share, position):
    threshold = math.ceil(share * previous + position * (1 - share) * previous)
    if not share * previous * (1 + 1e-6) < threshold < previous:
        return
    theta = float(queue_decay(previous, threshold, share))

    def logarithm(x):
        return previous * (x + math.log(share + (1 - share) * math.exp(-x))) - x * threshold

    drift = threshold - share * previous
    assert theta >= 8 * drift / previous * (1 - 1e-9)
    high = -previous * math.log(share) / (previous - threshold) + 1
    root = brentq(logarithm, 4 * drift / previous, high, xtol=1e-13)
    assert math.isclose(theta, root, rel_tol=1e-6)


def test_the_decay_at_and_beyond_the_ends():
    assert queue_decay(60, 56, 14 / 15) == 0  # equality
    assert queue_decay(60, 55, 14 / 15) == 0
    assert queue_decay(60, 60, 14 / 15) == np.inf
    assert queue_decay([60], [70], [14 / 15]).tolist() == [np.inf]


@pytest.mark.slow
def test_the_tail_of_the_queue_is_below_its_bound_and_decays_like_it():
    """Batches send Binomial(40, 0.6) on and take 26 off once as many wait; 100,000 runs.

    The queue stays below the proof's process, which never falls below 26 (Lemma 7), and that one's
    tail decays at theta.
    """
    rng = np.random.default_rng(5)
    before, here, share, runs = 40, 26, 0.6, 100_000
    theta = float(queue_decay(before, here, share))
    queue = np.zeros(runs, dtype=np.int64)
    larger = np.full(runs, here)
    for _ in range(200):
        arrived = rng.binomial(before, share, runs)
        queue += arrived
        queue -= np.where(queue >= here, here, 0)
        larger = np.maximum(here, larger + arrived - here)
        assert (queue <= larger).all()
    tail = [float((larger >= here + excess).mean()) for excess in (4, 8, 12)]
    for excess, seen in zip((4, 8, 12), tail, strict=True):
        bound = math.exp(-theta * excess)
        assert 0.4 * bound < seen < bound
    assert math.isclose(math.log(tail[0] / tail[1]) / 4, theta, rel_tol=0.05)
    assert math.isclose(math.log(tail[1] / tail[2]) / 4, theta, rel_tol=0.1)


def test_strict_thresholds_of_the_synthetic_setting():
    """567,330 + 7,270 + 10,370 tokens; the last for S / delta = 24,200."""
    plan = NestedWaitThresholds(SYNTHETIC, CLOCK).plan([60, 57, 50, 34], delta=0.01, iterations=242)
    assert (plan.memory, plan.queue_memory, plan.rare_memory) == (567_330, 7_270, 10_371)
    assert plan.memory_bound == 567_330 + plan.safety_stock == 584_971
    assert literal_memory(plan.program, plan.thresholds) == 567_330
    assert literal_memory(plan.program, [15, 14, 12, 8]) == 135_000  # (11) prints 158,000
    assert plan.batch_size == 60 * 21 + 57 * 20 + 50 * 40 + 34 * 80


def test_the_published_ratios_are_refused_because_they_are_equalities():
    with pytest.raises(
        InfeasibleError,
        match=r"\(10\) holds with equality for segment 2: 60 \* 0.933333 .* so theta is 0 and no",
    ):
        NestedWaitThresholds(SYNTHETIC, CLOCK).plan([60, 56, 48, 32])
    for rate in (1.0, 55 / 66, 0.1):
        with pytest.raises(InfeasibleError, match=r"\(10\) holds with equality for segment 2"):
            NestedWaitThresholds(BINS.scaled(rate), CLOCK).plan(
                10 * np.array([66, 43, 32, 24, 17, 11, 7, 4, 2, 1])
            )


def test_what_breaks_10_is_refused_with_what_would_do():
    program = NestedWaitThresholds(SYNTHETIC, CLOCK)
    with pytest.raises(
        InfeasibleError,
        match=r"\(10\) is broken for segment 3: 57 \* 0.857143 re.*"
        r"threshold is 40, so the queue .* it must be at least 49",
    ):
        program.plan([60, 57, 40, 34])
    with pytest.raises(InfeasibleError, match=r"break \(10\): 3 requests arrive in 0.01 s, and a"):
        program.plan([3, 3, 3, 3])
    tight = NestedWaitThresholds(SYNTHETIC, CLOCK, memory=580_000)
    with pytest.raises(InfeasibleError, match="need 584,971 tokens, 567,330 of them for a full"):
        tight.plan([60, 57, 50, 34], iterations=242)
    with pytest.raises(ModelError, match=r"thresholds are .*, but must be 4 numbers of at least 1"):
        program.plan([60, 57, 50])
    with pytest.raises(ModelError, match="delta is 0 and iterations is 10000, but delta must lie"):
        program.plan([60, 57, 50, 34], delta=0)


def test_the_first_condition_is_strict_too():
    """One type, a request holds 1 token twice: T(n) = 0.25 + 0.125 n = n / 2 at n = 2 / 3."""
    types = RequestTypes([0], [1], [2])
    program = NestedWaitThresholds(types, affine(0.375, 0.125))  # T(1) = 0.5 = 1 / 2
    with pytest.raises(InfeasibleError, match=r"break \(10\)"):
        program.plan([1])
    assert program.least_fixed_point().tolist() == [2]
    assert program.plan([2]).safety_stock == 0


@pytest.mark.slow
def test_the_best_margin_beats_the_others_tried():
    program = NestedWaitThresholds(BINS, CLOCK)
    best = program.best_margin(delta=0.01)
    for margin in (0.005, 0.02, 0.1, 0.3):
        other = NestedWaitThresholds(BINS, CLOCK, margin=margin)
        assert best.memory_bound <= other.plan(other.least_fixed_point()).memory_bound * 1.02
    limited = NestedWaitThresholds(BINS, CLOCK, memory=best.memory_bound)
    assert limited.best_margin().memory_bound == best.memory_bound
    with pytest.raises(InfeasibleError, match="but the memory is"):
        NestedWaitThresholds(BINS, CLOCK, memory=best.memory_bound - 1).best_margin()


def test_a_margin_that_no_thresholds_keep_is_refused():
    busy = SYNTHETIC.scaled(0.97 / equilibrium(SYNTHETIC, CLOCK).load)
    with pytest.raises(InfeasibleError, match="with these segments and the margin 1 the load is"):
        NestedWaitThresholds(busy, CLOCK, margin=1.0).least_fixed_point()
    assert NestedWaitThresholds(busy, CLOCK).best_margin().program.margin < 0.2


def test_segments_may_hold_several_types():
    program = NestedWaitThresholds(SYNTHETIC, CLOCK, [40, 160])
    assert program.rates.tolist() == [300, 240]
    assert program.shares.tolist() == [0.8]
    assert program.queue_tokens.tolist() == [0, 50]
    assert program.held_tokens.tolist() == [420 + 810, 2820 + 10440]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"types": SYNTHETIC.scaled(100)}, InfeasibleError, "above 1, where any policy falls"),
        ({"types": RequestTypes([1, 2], [1, 2], [1, 1])}, ModelError, "needs types of one prompt"),
        ({"margin": 0}, ModelError, "the margin is 0, but must be above 0 .* equality"),
        ({"borders": [20, 40]}, ModelError, "must end at the longest output, 160"),
        ({"borders": [20, 30, 160]}, ModelError, "an output must end in each segment"),
        ({"borders": [40, 20, 160]}, ModelError, "must ascend"),
        ({"memory": 100}, InstanceError, "one request of type 4 needs 170 tokens"),
    ],
)
def test_bad_programs_are_refused_in_one_sentence(changes, error, message):
    with pytest.raises(error, match=message):
        NestedWaitThresholds(**({"types": SYNTHETIC, "clock": CLOCK} | changes))


def test_pyomo_speaks_of_thresholds_time_and_ratio():
    m = NestedWaitThresholds(SYNTHETIC, CLOCK, [40, 160], margin=1.0, memory=10**6).to_pyomo()
    assert str(m.ratio[1].expr) == "0.0  <=  - threshold[0] + threshold[1]"
    assert str(m.memory.expr) == "1230.0*threshold[0] + 13310.0*threshold[1]  <=  1000000.0"


@pytest.mark.parametrize("program", [WaitThresholds, NestedWaitThresholds])
@pytest.mark.parametrize("slack", [1e308, 1e15])
def test_tokens_beyond_64_bits_are_refused(program, slack):
    # It had been an OverflowError, and below that a batch of a negative number of tokens.
    types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    program = program(types, affine(0.0085, 2.7e-7), minimum_slack=slack)
    with pytest.raises(InfeasibleError, match="the thresholds hold more than"):
        program.least_fixed_point()
    with pytest.raises(InfeasibleError, match="the thresholds hold more than"):
        program.plan([2**60, 2**60])
