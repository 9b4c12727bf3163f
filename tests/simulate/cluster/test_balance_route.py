"""BalanceRoute: what it chooses by its definition, literally, and what it keeps to."""

import itertools

import numpy as np
import pytest
from effort import share

from optsched import Cluster, family, run
from optsched.errors import PolicyError
from optsched.simulate.cluster import BalanceRoute, ClusterState, NoInformation, Predictor


def literal_gain(tokens, margin, penalty, decay):
    """The gain of a set with so many tokens, as it is defined."""
    steps = range(len(margin))
    over = sum(decay**step * max(tokens - margin[step], 0) for step in steps)
    return tokens * sum(decay**step for step in steps) - penalty * over


def state(loads, free, sizes):
    """A step of a cluster that nothing else is known of."""
    nothing = np.zeros(len(free), dtype=np.int64)
    waiting = np.arange(len(sizes))
    now = np.array(loads).reshape(len(free), -1)
    free, sizes = np.array(free), np.array(sizes)
    return ClusterState(0, now, free, nothing, nothing, waiting, sizes, waiting * 0)


def test_the_set_chosen_gains_most_among_all_sets():
    rng = np.random.default_rng(1)
    several = forced = 0
    for _ in range(share(400)):
        sizes = rng.integers(1, 30, rng.integers(1, 8))
        margin = rng.integers(0, 60, rng.integers(1, 4))
        most, workers = int(rng.integers(1, 5)), int(rng.integers(2, 6))
        penalty = rng.choice([None, 1.5, 43.0])
        rule = BalanceRoute(penalty=penalty, decay=0.5)

        def of(places, sizes=sizes, margin=margin, penalty=penalty or workers):
            return literal_gain(sum(sizes[list(places)]), margin, penalty, 0.5)

        found = rule.best(sizes, margin, most, workers)
        counts = range(1, min(most, len(sizes)) + 1)
        everybody = range(len(sizes))
        sets = [each for count in counts for each in itertools.combinations(everybody, count)]
        best = max(map(of, sets))
        if best > 0:
            assert len(set(found)) == len(found) <= most
        else:
            assert len(found) == 1
            best = max(of((place,)) for place in everybody)
        several += len(found) > 1
        forced += best <= 0
        assert of(found) == pytest.approx(best)
    assert several
    assert forced


def test_slots_are_filled_and_margins_before_them():
    scarce = BalanceRoute().route(state([100, 90, 70, 60], [1, 1, 1, 2], [25, 80, 30, 10]))
    # 30 and 10 fill the lightest up to 100; the largest that is left goes where it adds least.
    assert scarce.tolist() == [2, 1, 3, 3]
    plenty = BalanceRoute(scarce=0).route(state([100, 60], [1, 2], [30, 40]))
    assert plenty.tolist() == [0, 1]


def test_as_many_requests_start_as_there_are_slots_for():
    trace, cluster = family("lognormal", n=300, seed=3), Cluster(workers=3, slots=5)
    for rule in (
        BalanceRoute(),
        BalanceRoute(lookahead=4, penalty=43),
        BalanceRoute(lookahead=4, information=Predictor(6, noise=2)),
    ):
        served = run(trace, rule, cluster=cluster, steps=500)
        assert served.check() == []
        assert (served.active == np.minimum(15, served.active + served.waiting)).all()


def test_it_is_told_what_it_looks_at():
    trace, cluster = family("lognormal", n=60, seed=1), Cluster(workers=2, slots=4)
    told = {
        "nothing": [BalanceRoute(), BalanceRoute(lookahead=3, information=NoInformation())],
        "outputs": [BalanceRoute(lookahead=3)],
        "forecast": [BalanceRoute(lookahead=3, information=Predictor(5, noise=1))],
    }
    for knows, rules in told.items():
        for rule in rules:
            assert run(trace, rule, cluster=cluster, steps=50).knows == knows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": -1}, "lookahead is -1, but must be a whole number from 0"),
        ({"penalty": 0}, "penalty is 0, but must be above 0"),
        ({"decay": 1.5}, "decay is 1.5, but must be above 0, at most 1"),
        ({"scarce": 0.5}, "scarce is 0.5, but must be a whole number"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(PolicyError, match=message):
        BalanceRoute(**options)
