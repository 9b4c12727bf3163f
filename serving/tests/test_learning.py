"""What completed requests show of outputs to come, what clients may claim, turns, and ages."""

import csv
import gzip
import math
from collections import defaultdict
from fractions import Fraction

import literal_aging
import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from optsched_serving import learning
from optsched_serving.learning import Aging, OutputLearner, Seen, TokenCounters, gittins

BINS = sorted({round(2 ** (k / 4)) for k in range(81)})


def literally(seen, past):
    """Chances of the outputs that stand for bins, from (seen, output) of completed requests."""

    def kind(each):
        like = math.floor(math.log2(max(each.prompt, 1)) * 4)
        return like, each.limit.bit_length(), each.priority, min(each.turn, 3)

    alike = [
        lambda _: True,
        lambda other: kind(other)[0] == kind(seen)[0],
        lambda other: kind(other) == kind(seen),
    ]
    if seen.client is not None:
        alike.append(lambda other: other.client == seen.client)
        alike.append(lambda other: other.client == seen.client and kind(other) == kind(seen))
    allowed = [b for b in BINS if b <= seen.limit]
    chances, worth = {b: 1 / len(allowed) for b in allowed}, 2
    for is_alike in alike:
        outputs = [min(BINS, key=lambda b: abs(math.log(b / o))) for s, o in past if is_alike(s)]
        if outputs:
            whole = len(outputs) + worth
            chances = {b: (outputs.count(b) + worth * chances.get(b, 0)) / whole for b in BINS}
        worth = 4
    beyond = sum(chance for b, chance in chances.items() if b > allowed[-1])
    return {b: chances[b] + beyond * (b == allowed[-1]) for b in allowed}


kinds = st.builds(
    Seen,
    st.integers(0, 9),
    st.sampled_from([30, 2000]),
    st.sampled_from([None, 1, "chat"]),
    st.integers(0, 1),
    st.integers(0, 5),
)


@examples(150)
@given(st.lists(st.tuples(kinds, st.integers(1, 900)), max_size=25), kinds)
def test_expectations_are_those_of_literal_counting(past, seen):
    learner = OutputLearner()
    for each, output in past:
        learner.learn(output, learner.expect(each))
    expected, chances = learner.expect(seen), literally(seen, past)
    assert sum(chances.values()) == pytest.approx(1)
    mean = sum(b * chance for b, chance in chances.items())
    assert expected.mean == pytest.approx(math.ceil(mean - 1e-6), abs=1)
    known = dict(zip(expected.outputs.tolist(), expected.chances, strict=True))
    assert known == pytest.approx({b: chances.get(b, 0.0) for b in known})
    below = sum(chance for b, chance in chances.items() if b < expected.median)
    assert below < 0.5 + 1e-6
    assert below + chances[expected.median] > 0.5 - 1e-6
    for made in (0, 1, 7, 29, 500):
        assert expected.left(made) == max(1, expected.mean - made)
        assert expected.planned(made) == max(1, expected.median - made)


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_index_is_that_of_the_best_output_to_serve_up_to(drawn):
    weights, more = zip(*drawn, strict=True)
    assume(sum(weights))
    costs = np.cumsum(more).tolist()
    chances = [Fraction(weight, sum(weights)) for weight in weights]
    ratios = [
        sum(p * min(cost, most) for p, cost in zip(chances, costs, strict=True))
        / sum(chances[: at + 1])
        for at, most in enumerate(costs)
        if sum(chances[: at + 1])
    ]
    found = gittins(np.array(chances, dtype=float), np.array(costs, dtype=float))
    assert found == pytest.approx(float(min(ratios)))
    assert found <= sum(p * cost for p, cost in zip(chances, costs, strict=True)) + 1e-9


def test_little_is_planned_for_the_new_and_the_known_at_their_median():
    learner, rng = OutputLearner(), np.random.default_rng(0)
    seen = Seen(100, 100_000, "chat")
    first = learner.expect(seen)
    assert first.planned(0) < 0.1 * first.left(0)  # of an idle memory nobody gains
    for output in np.minimum(rng.geometric(1 / 50, 3000), 1000).tolist():
        learner.learn(output, learner.expect(seen))
    known = learner.expect(seen)
    assert known.left(0) == pytest.approx(50, rel=0.15)
    assert known.planned(0) == pytest.approx(50 * math.log(2), rel=0.15)
    new = learner.expect(Seen(100, 100_000, "another"))
    assert new.left(0) == pytest.approx(known.left(0), rel=0.1)


@pytest.fixture(scope="module")
def experienced():
    """A learner of lognormal outputs, before any claim."""
    learner, rng = OutputLearner(), np.random.default_rng(1)
    for output in np.clip(rng.lognormal(5, 0.8, 2000), 1, 2000).astype(int).tolist():
        learner.learn(output, learner.expect(Seen(50, 2000)))
    return learner


def claimed(learner, client, ratios, claim):
    """Return what is expected after claims that were off by these factors."""
    rng = np.random.default_rng(2)
    for ratio, output in zip(
        ratios, np.clip(rng.lognormal(5, 0.8, len(ratios)), 2, 2000), strict=True
    ):
        seen = Seen(50, 2000, client, claim=max(1.0, output * ratio))
        learner.learn(int(output), learner.expect(seen))
    return learner.expect(Seen(50, 2000, client, claim=claim)).left(0)


def test_a_claim_moves_no_more_than_its_record_allows(experienced):
    plain = experienced.expect(Seen(50, 2000)).left(0)
    lower = np.exp(5 - 0.6745 * 0.8)  # a quarter of the outputs are below
    assert claimed(experienced, "new", [], 1) > 0.85 * lower
    honest = claimed(experienced, "honest", [1.0] * 300, 20)
    assert honest == pytest.approx(20, rel=0.25)
    assert claimed(experienced, "honest", [], 700) == pytest.approx(700, rel=0.25)
    halved = claimed(experienced, "halves", [0.5] * 100, 100)
    assert halved == pytest.approx(200, rel=0.3)
    ones = claimed(experienced, "ones", [1e-9] * 100, 1)
    assert 0.7 * plain < ones < 1.6 * plain


def test_what_was_used_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(learning, "_GROUPS", 20)
    learner, counters = OutputLearner(), TokenCounters()
    for client in range(200):
        seen = Seen(5, 100, client, claim=3.0)
        learner.learn(4, learner.expect(seen))
        counters.tag(seen, 4)
    kept = [
        each for one in (learner, counters) for each in vars(one).values() if type(each) is dict
    ]
    assert len(kept) == 4
    assert max(map(len, kept)) <= 20
    kept, forgotten = (("client", client) in vars(learner)["_groups"] for client in (199, 0))
    assert kept
    assert not forgotten


def running_mean():
    """The mean of outputs by octaves of prompts, drawn towards that of all, as one has it first."""
    means = defaultdict(lambda: (0, 256.0))

    def expect(prompt):
        (count, mean), overall = means[prompt.bit_length()], means[None][1]
        return (count * mean + 10 * overall) / (count + 10)

    def learn(prompt, output):
        for group in (prompt.bit_length(), None):
            count, mean = means[group]
            count = min(count + 1, 1000)
            means[group] = count, mean + (output - mean) / count

    return expect, learn


@pytest.mark.parametrize(
    ("trace", "plain", "most"), [("azure_conv_2023", 0.29, 0.235), ("lmsys_chat", 0.70, 0.70)]
)
def test_errors_on_real_traces_against_those_of_the_running_mean(shared_data, trace, plain, most):
    learner, (expect, learn), off, ours = OutputLearner(), running_mean(), [], []
    with gzip.open(shared_data / f"{trace}.csv.gz", "rt", encoding="utf-8") as lines:
        rows = [(int(r["prompt_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(lines)]
    for prompt, output in rows[:3000]:
        off.append(abs(expect(prompt) - output))
        learn(prompt, output)
        expected = learner.expect(Seen(prompt, 4096))
        ours.append(abs(expected.left(0) - output))
        learner.learn(output, expected)
    outputs = np.array([output for _, output in rows[:3000]])
    assert np.mean(off) / outputs.mean() == pytest.approx(plain, abs=0.02)
    assert np.mean(ours) / outputs.mean() < most


def test_counters_serve_clients_in_turn():
    counters = TokenCounters()
    tags = [counters.tag(Seen(10, 99, "many"), 20) for _ in range(5)]
    assert tags == [0, 50, 100, 150, 200]
    assert counters.tag(Seen(10, 99, "few"), 5) == 0
    counters.serve(tags[3])
    # Who comes back begins where those served last began, and no earlier.
    assert counters.tag(Seen(10, 99, "few"), 5) == 150
    assert counters.tag(Seen(10, 99, "new"), 5) == 150
    counters.settle(Seen(10, 99, "many"), 20, 50)
    assert counters.tag(Seen(10, 99, "many"), 20) == 250 + 60


@examples(200)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0.005, 0.5, 4]), *(st.integers(1, 60) for _ in range(4))),
        min_size=1,
        max_size=130,
    ),
    st.sampled_from(["load", 0.5]),
)
def test_keys_age_as_all_that_has_come_and_left_says(rows, scale):
    aging, twin, now, waiting = Aging(scale), literal_aging.Aging(scale), 0.0, []
    for number, (pause, key, prompt, output, leaves) in enumerate(rows):
        now += pause
        later = aging.arrives(number, now, key, prompt, output)
        twin.arrives(number, now, key, prompt, output)
        assert aging.key(key, later) == pytest.approx(twin.key(number, key), rel=1e-12)
        waiting.append(number)
        for _ in range(leaves % 3):
            if waiting:
                gone = waiting.pop(leaves % len(waiting))
                aging.leaves(gone)
                twin.left.add(gone)
                aging.leaves(gone)  # when it ends, too


@pytest.mark.parametrize("claimed", [1, 3, 180, 2000, 10**9])
def test_whatever_the_limit_and_the_claims_something_is_expected(claimed):
    learner = OutputLearner()
    for _ in range(600):
        seen = Seen(100, 400, "a", claim=float(claimed))
        learner.learn(180, learner.expect(seen))
    for limit in (1, 2, 5, 177, 400, 10**6):
        for claim in (1.0, 180.0, 1e6):
            found = learner.expect(Seen(100, limit, "a", claim=claim))
            assert 1 <= found.mean <= limit
            assert 1 <= found.median <= limit
