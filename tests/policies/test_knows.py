"""What policies say they know of outputs, against what they do when outputs are others."""

from dataclasses import replace

import numpy as np
import pytest
from effort import share
from installed import ENGINE, with_serving

from optsched import Cluster, DecisionPolicy, Execution, Instance, RunSettings, run
from optsched.clock import LinearClock
from optsched.policies import POLICIES, DynamicPolicy, RollingPolicy, get_policy
from optsched.problem.workers import ROUTERS, Router
from optsched.simulate.cluster import BalanceRouting, NoInformation, Predictor, RoutingRule

CLOCK = LinearClock("dyadic", 1.0, 1 / 64, 1 / 64, 1 / 1024)
SOLVED = {"sorted-f-mip", "sorted-f-mip-profile", "sorted-f-dp", "sorted-f-scaled-dp"}
TIMED = {"engine", "vllm", "wait"}
MANY = [
    *sorted(set(POLICIES) - SOLVED - {"rolling"}),
    *("rolling:batch", "area+window", "fcfs+backfill", "nested-wait:3=1,12=2"),
    *with_serving("vllm:fcfs", "vllm:area", "vllm+plan", "vllm:area+plan", "vllm:area,load"),
    *with_serving(
        "vllm:fcfs,load",
        "vllm+learned",
        "vllm:area+learned",
        "vllm:area+plan+learned",
        "vllm:area+gittins+learned",
    ),
    *with_serving("vllm+fair", "vllm:edf", "vllm:least-slack"),
    DecisionPolicy("all-waiting", "which looks at nothing", lambda state: state.waiting),
    DecisionPolicy("told", "", lambda s: s.waiting[np.argsort(s.forecast.upper[s.waiting])]),
    DecisionPolicy(
        "untold", "", lambda s: s.waiting[np.argsort(s.forecast.upper[s.waiting])], reads="nothing"
    ),
    DynamicPolicy("untold-key", "", lambda state: state.lower[state.waiting], reads="nothing"),
    RollingPolicy(budget=0, fallback="mc-sf", name="fallback"),
]
#: Which look at outputs, but decide as if they did not.
IDLE = {"all-waiting", "vllm:fcfs,load"}
NAMES = [getattr(each, "name", each) for each in MANY]


def drawn(rng, policy, columns, timed):
    """Draw an instance, and the same with other outputs of some requests."""
    count, memory = 9, int(rng.integers(26, 50)) * (10 if "wait" in policy else 1)
    outputs = rng.integers(4, 13, count)
    prompts = rng.integers(1, 13, count)
    arrivals = np.cumsum(rng.integers(0, rng.choice([1, 2, 6]), count))
    arrivals[-1] += 1  # where all come at once there are no rates
    known = {"seconds_per_step": 1.0 if timed else None, "deadlines": arrivals + 6 + prompts % 5}
    if columns:
        upper = rng.integers(4, 16, count)
        lower = np.maximum(1, upper - rng.integers(0, 6, count))
        known |= {"output_lower": lower, "output_upper": upper}
    others = rng.permutation(outputs)
    if policy != "nested-wait":  # which knows how they are distributed
        others = np.where(rng.random(count) < 0.5, outputs, rng.integers(4, 13, count))
    there = Instance(prompts, outputs, memory, arrivals, **known)
    return there, there.replace(outputs=others)


def revealed(here, there):
    """Return before when nothing can show that outputs differ: each token takes a step or more."""
    which = np.flatnonzero(here.outputs != there.outputs)
    least = np.minimum(here.outputs, there.outputs)
    return int((here.arrivals + least)[which].min(initial=10**6))


def decisions(ran, until):
    """Return all that was decided before a time."""
    if isinstance(ran, Execution):
        begun = ran.starts < until
        made = np.minimum(ran.tokens, until - ran.starts)
        return sorted(zip(ran.requests[begun], ran.starts[begun], made[begun], strict=True))
    if hasattr(ran, "runs"):  # on several workers
        there = np.flatnonzero(ran.instance.arrivals < until)
        own = [None if each is None else decisions(each, until) for each in ran.runs]
        return [*map(int, ran.placement[there])], [each or None for each in own]
    if hasattr(ran, "revealed"):  # on a cluster
        begun = (ran.starts >= 0) & (ran.starts < until)
        return [np.where(begun, each, -1).tolist() for each in (ran.starts, ran.workers)]
    begun = ran.log.spans[:, 0] < until
    return np.column_stack([ran.log.spans, ran.log.contents])[begun].tolist()


def differs(policy, options, rng):
    """Run on two instances, and say whether something was decided that outputs alone explain."""
    name = getattr(policy, "name", policy)
    here, there = drawn(rng, name, options.get("intervals") == "column", "clock" in options)
    settings = RunSettings(**options)
    until = revealed(here, there)
    found = [run(each, policy, settings) for each in (here, there)]
    told = found[0].knows
    assert told in (settings.knows(policy, here), "nothing")  # that it looked at nothing is seen
    return told, decisions(found[0], until) != decisions(found[1], until)


def settings_of(policy, world, rng):
    """Return the options of a world in which a policy runs; None where it does not."""
    chosen = policy if not isinstance(policy, str) else get_policy(policy)
    options = {"seed": int(rng.integers(9))}
    looks = chosen.needs.knows == "intervals" or chosen.foresees != "nothing"
    if chosen.needs.knows == "intervals" or (looks and rng.random() < 0.5):
        options["intervals"] = "column"
    if world != "steps" or chosen.needs.kind in TIMED:
        if getattr(chosen, "rule", "prefix") not in ("prefix", "window", "skip"):
            return None
        options["clock"] = CLOCK
    if world == "workers":
        if chosen.needs.kind == "wait":
            return None  # one worker may have no rates
        looking = chosen.needs.kind in ("engine", "vllm", "order") and policy != "a-random"
        routers = set(ROUTERS) if looking else {"round-robin", "random"}
        options |= {"workers": 2, "router": str(rng.choice(sorted(routers)))}
    return options


@pytest.mark.slow("lp-swap-*", "sorted-lp-*")
@pytest.mark.parametrize("world", ["steps", "clock", "workers"])
@pytest.mark.parametrize("policy", MANY, ids=NAMES)
def test_only_who_is_told_outputs_decides_by_them(policy, world):
    """And who says that it is told outputs does decide by them, now and then."""
    rng, name, seen = np.random.default_rng(4), getattr(policy, "name", policy), {}
    if isinstance(policy, str) and get_policy(policy).needs.kind in ("engine", "vllm"):
        policy = replace(get_policy(policy), block_size=1, max_num_seqs=4)
    for _ in range(share(60)):
        options = settings_of(policy, world, rng)
        if options is None:
            return
        told, differ = differs(policy, options, rng)
        assert told == "outputs" or not differ, options
        seen.setdefault(told, []).append(differ)
    assert world == "workers" or name in IDLE or any(seen.get("outputs", [True]))


ROUTED = [
    *sorted(ROUTERS),
    Router(
        "told", "", function=lambda state: int(state.workers[state.work[state.workers].argmin()])
    ),
    Router(
        "untold",
        "",
        function=lambda state: int(state.workers[state.work[state.workers].argmin()]),
        reads="nothing",
    ),
]


@pytest.mark.parametrize("router", ROUTED, ids=[getattr(each, "name", each) for each in ROUTED])
def test_only_a_router_that_is_told_outputs_decides_by_them(router):
    rng, small = np.random.default_rng(2), replace(get_policy(ENGINE), block_size=1)
    options = {"clock": CLOCK, "workers": 2, "router": router}
    found = [differs(small, options | {"seed": seed}, rng) for seed in range(share(100))]
    (told,) = {told for told, _ in found}
    knowing = ("least-work", "by-cost-known", ROUTED[-2])
    assert told == ("outputs" if router in knowing else "nothing")
    assert any(differ for _, differ in found) == (told == "outputs")


NOISY = Predictor(30, noise=2.0)
ROUTINGS = [
    *((RoutingRule(each), "nothing") for each in ("fcfs", "jsq", "round-robin", "lpt")),
    (BalanceRouting(lookahead=0), "nothing"),
    (BalanceRouting(lookahead=6), "outputs"),
    (BalanceRouting(lookahead="adaptive"), "outputs"),
    (BalanceRouting(lookahead=6, information=NoInformation()), "nothing"),
    (BalanceRouting(lookahead=6, information=Predictor(6)), "outputs"),
    (BalanceRouting(lookahead=6, information=NOISY), "forecast"),
]


@pytest.mark.parametrize(("routing", "told"), ROUTINGS)
def test_a_cluster_is_told_what_its_routing_sees_and_its_memory_reserves(routing, told):
    rng, plain = np.random.default_rng(3), Cluster(2, 3)
    found = [differs(routing, {"cluster": plain, "seed": each}, rng) for each in range(share(100))]
    assert {said for said, _ in found} == {told}
    if told != "forecast":  # a signal of an end comes from the output
        assert any(differ for _, differ in found) == (told == "outputs")
    limited = [
        differs(routing, {"cluster": Cluster(2, 3, memory=36), "seed": each}, rng)
        for each in range(share(100))
    ]
    assert {said for said, _ in limited} == {"outputs"}
    assert any(differ for _, differ in limited)


@pytest.mark.parametrize("intervals", ["exact", "relative:0", "classes:1", "common:5,5"])
def test_intervals_that_leave_nothing_open_tell_the_outputs(intervals):
    requests = Instance([4, 4, 4], [5, 5, 5], 40)
    assert run(requests, "a-min", intervals=intervals).knows == "outputs"
    assert run(requests, "a-min", intervals="common:5,6").knows == "forecast"


def test_a_run_says_in_a_sentence_what_came_of_it():
    requests = Instance([4, 4, 4], [3, 5, 2], 20)
    told = "area, told every true output, completes 3 of 3 requests, with a mean latency of "
    assert run(requests, "area").headline.startswith(told)
    assert "(told every true output)" in str(run(requests, "area"))
    lost = run(Instance([0, 0], [6, 6], 10), "alpha-greedy:0.2")
    assert lost.why is not None
    assert lost.headline.endswith(f" of 2 requests: its run {lost.why}.")
