"""Routing policies: names, options, and what each is for."""

import numpy as np
import pytest

from optsched import Cluster, family, run
from optsched.errors import PolicyError
from optsched.simulate.cluster import (
    BalanceRouting,
    NoInformation,
    Predictor,
    RoutingRule,
    get_routing,
)
from optsched.simulate.cluster.routing import NEVER

CLUSTER, STEPS = Cluster(16, 72), 2300  # the calibrated setting, half as long


@pytest.fixture(scope="module")
def trace():
    return family("lognormal", n=12_000, seed=1)


def imbalance(trace, policy, **options):
    result = run(trace, policy, cluster=CLUSTER, steps=STEPS, **options)
    return result.metrics(warm_up=300)["imbalance_tokens"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": -1}, "lookahead is -1, but must be a whole number from 0"),
        ({"lookahead": 2.5}, "lookahead is 2.5, but must be a whole number"),
        ({"lookahead": 9, "information": Predictor(8)}, "prediction reaches only 8 steps"),
        ({"lookahead": "adaptive", "information": Predictor(8)}, "reaches only 8 steps"),
        ({"method": "swop"}, "unknown method 'swop': did you mean 'swap'?"),
        ({"window_scale": 0}, "window_scale is 0, but must be positive"),
        ({"time_limit": 1}, "time_limit is 1, but is for the methods 'highs' and 'cp-sat'; leave"),
        ({"rounds": 5, "method": "highs"}, "rounds is 5, but is for the method 'swap'; leave"),
        ({"longest": 50}, "longest is 50, but is for the lookahead 'adaptive'; leave it out"),
        ({"window_scale": 2.0}, "window_scale is 2.0, but is for the lookahead 'adaptive'"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(PolicyError, match=message):
        BalanceRouting(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoutingRule("bf-io"), "unknown routing rule 'bf-io'"),
        (lambda: RoutingRule("power-of-d", choices=0), "at least 1 worker must be drawn"),
        (lambda: RoutingRule("jsq", choices=3), "choices is 3, but is for 'power-of-d', not 'jsq'"),
        (lambda: get_routing("jsq", lookahead=3), "lookahead: options are for the name 'bf-io'"),
        (
            lambda: get_routing(BalanceRouting(), method="greedy"),
            "method: options are for the name",
        ),
        (lambda: Predictor(5, misses=1.5), "misses is 1.5, but must be a share"),
        (lambda: Predictor(-1), "horizon is -1, but must not be negative"),
        (lambda: get_routing(3), "3 is not a routing policy: it needs a name and a method route"),
    ],
)
def test_bad_rules_get_one_sentence(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_what_is_routed_on_arrival_has_no_patience(trace):
    with pytest.raises(PolicyError, match="patience is 9, but is for requests that wait until"):
        run(trace, BalanceRouting(patience=9), cluster=CLUSTER, dispatch="instant", steps=5)


@pytest.mark.parametrize("patience", [[1, 2], 1.5, -3])
def test_patience_is_checked(trace, patience):
    with pytest.raises(PolicyError, match="patience"):
        run(trace, BalanceRouting(patience=patience), cluster=CLUSTER, steps=5)


def test_each_idea_of_the_paper_lowers_imbalance(trace):
    """Table 1 on half a trace: FCFS and JSQ alike, LPT better, BF-IO more so, with H still more."""
    fcfs = imbalance(trace, "fcfs")
    assert 0.75 < imbalance(trace, "jsq") / fcfs < 1.33
    assert 3 < fcfs / imbalance(trace, "lpt") < 5
    assert 7 < fcfs / imbalance(trace, BalanceRouting(lookahead=0)) < 12
    assert 14 < fcfs / imbalance(trace, BalanceRouting(lookahead=20)) < 22


def test_throughput_is_that_of_table_1(trace):
    for policy, printed in (
        ("fcfs", 8.00e4),
        (BalanceRouting(lookahead=0), 9.03e4),
        (BalanceRouting(lookahead=20), 9.13e4),
    ):
        result = run(trace, policy, cluster=CLUSTER, steps=STEPS)
        assert abs(result.metrics(warm_up=300)["throughput"] / printed - 1) < 0.04


def test_patience_bounds_waiting_and_classes_order_it(trace):
    free = run(trace, BalanceRouting(), cluster=CLUSTER, steps=STEPS)
    fair = run(trace, BalanceRouting(patience=500), cluster=CLUSTER, steps=STEPS)
    assert free.waits.max() > 1000 > 400 > fair.waits.max()
    assert free.stuck > 0 == fair.stuck
    urgent = np.arange(len(trace)) % 4 == 0
    classes = BalanceRouting(patience=np.where(urgent, 60, 600))
    result = run(trace, classes, cluster=CLUSTER, steps=STEPS)
    seen = result.revealed >= 300
    assert result.waits[urgent & seen].max() < result.waits[~urgent & seen].max()
    assert result.waits[urgent & seen].mean() < result.waits[~urgent & seen].mean() / 2


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [126, 300])
def test_an_adaptive_window_is_near_the_best_fixed_one(outputs):
    trace = family("lognormal", n=12_000 * 300 // outputs, seed=2, output_mean=outputs)
    fixed = [imbalance(trace, BalanceRouting(lookahead=h)) for h in (0, 5, 10, 20, 40)]
    assert imbalance(trace, BalanceRouting(lookahead="adaptive")) < 1.15 * min(fixed)
    assert max(fixed) > 1.5 * min(fixed)


@pytest.mark.slow
def test_a_better_signal_balances_better(trace):
    def under(information):
        return imbalance(trace, BalanceRouting(lookahead=20, information=information))

    perfect, none = imbalance(trace, BalanceRouting(lookahead=20)), under(NoInformation())
    assert under(Predictor(20)) == perfect
    assert under(Predictor(20, misses=1.0)) == none
    assert perfect < under(Predictor(20, misses=0.5)) < none
    assert perfect < under(Predictor(20, false_alarms=0.3)) < under(Predictor(20, 0, 1.0))


def test_announcements_are_as_wrong_as_they_say():
    outputs = np.full(20_000, 500)
    alarms = Predictor(20, misses=0.2, false_alarms=0.3, noise=4).alarms(
        outputs, np.random.default_rng(0)
    )
    told = alarms[:, 0] < NEVER
    assert abs(told.mean() - 0.8) < 0.01
    assert abs((alarms[:, 2] < NEVER).mean() - 0.3) < 0.01
    assert abs((alarms[told, 1] - 500).std() - 4) < 0.1
    assert (alarms[told, 1] - alarms[told, 0] == 20).all()
    false = alarms[:, 2] < NEVER
    assert (alarms[false, 3] < 500).all()
    assert (alarms[false, 3] > alarms[false, 2]).all()


def test_binding_on_arrival_costs_balance(trace):
    pool = imbalance(trace, BalanceRouting(lookahead=10))
    instant = imbalance(trace, BalanceRouting(lookahead=10), dispatch="instant")
    assert pool < instant < imbalance(trace, "fcfs", dispatch="instant")
