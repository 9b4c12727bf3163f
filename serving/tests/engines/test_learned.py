"""vLLM's scheduler with outputs that it learns, and fair to clients, beside a literal twin."""

from dataclasses import replace

import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal_aging import with_aging
from literal_learning import literal_learner
from vllm_runs import CLOCK, policy_of, same

import optsched
from optsched import Instance
from optsched.errors import PolicyError
from optsched.policies import get_policy
from optsched_serving.learning import Seen

SMALL = "llama-2-7b-a100"


NAMES = (
    *("+learned", ":area+learned", "+plan+learned", ":area+plan+learned", "+fair"),
    *(":area,load+learned", ":area,load+plan+learned"),
)
requests = st.tuples(
    *(st.integers(1, 20), st.integers(1, 12), st.integers(0, 60), st.integers(0, 2)),
    *(st.integers(0, 2), st.integers(1, 30)),
)


@examples(200)
@given(
    st.lists(requests, min_size=1, max_size=14),
    st.sampled_from(NAMES),
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)
def test_runs_that_learn_equal_the_literal_scheduler(rows, name, blocks, later, claims):
    prompts, outputs, ticks, priorities, clients, estimates = np.array(rows).T
    case = {
        "num_gpu_blocks": 12 + blocks,
        "block_size": 3,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "policy": "fcfs",
        "async_scheduling": later,
    }
    instance = Instance(
        prompts,
        outputs,
        (11 + blocks) * 3,
        np.sort(ticks),
        seconds_per_step=0.01,
        priorities=priorities,
        clients=clients,
        output_estimates=estimates if claims else None,
    )
    run = optsched.run(instance, policy_of(case, f"vllm{name}"), clock=CLOCK)
    seen = [
        Seen(p, instance.memory - p, client, priority, claim=claim if claims else None)
        for p, _, _, priority, client, claim in rows
    ]
    order = "area" if "area" in name else None
    scheduler = literal_learner(seen, order, "plan" in name, "fair" in name)
    scheduler = with_aging(scheduler, "load") if "load" in name else scheduler
    made = [
        literal_vllm.Request(number, prompt, output, arrival)
        for number, ((prompt, output, *_), arrival) in enumerate(
            zip(rows, (instance.arrivals * 0.01).tolist(), strict=True)
        )
    ]
    policy = "priority" if order or "fair" in name else "fcfs"
    settings = literal_vllm.Settings(**case | {"policy": policy})
    twin = literal_vllm.run(made, settings, CLOCK, scheduler=scheduler)
    assert same(run, range(len(rows)), twin)


def test_what_is_learned_does_not_look_at_the_outputs_to_come():
    """Requests that end later cannot change what was decided before."""
    rng = np.random.default_rng(3)
    instance = Instance(
        [100] * 40, rng.integers(5, 60, 40), 1600, range(0, 400, 10), seconds_per_step=0.01
    )
    other = instance.replace(outputs=np.append(instance.outputs[:39], 9))
    for name in ("vllm:work+learned", "vllm+plan+learned", "vllm+fair"):
        one, two = (optsched.run(each, name, clock=SMALL) for each in (instance, other))
        last = min(run.first_batch[39] for run in (one, two))
        assert (one.log.contents[:last] == two.log.contents[:last]).all()
        assert one.log.contents.tolist() != two.log.contents.tolist()


def overloaded(seed):
    """600 requests of 20 clients, of which every fourth claims an output of 1, others the truth."""
    rng = np.random.default_rng(seed)
    clients = rng.integers(0, 20, 600)
    outputs = np.clip(rng.lognormal(4.5, 0.9, 600), 1, 800).astype(int)
    return Instance(
        rng.integers(20, 300, 600),
        outputs,
        8000,
        np.sort(rng.integers(0, 1500, 600)),
        seconds_per_step=0.01,
        clients=clients,
        output_estimates=np.where(clients % 4 == 0, 1, outputs),
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_that_claim_too_little_gain_little(seed):
    """At most a twentieth over the truth; where claims are believed, three fifths."""
    requests = overloaded(seed)
    cheats = requests.clients % 4 == 0
    claims = requests.output_estimates
    believed = requests.replace(output_lower=claims, output_upper=claims)

    def latencies(instance, name, **known):
        run = optsched.run(instance, name, clock=SMALL, **known)
        times = run.completions - run.arrivals
        return np.array([times[cheats].mean(), times[~cheats].mean()])

    plain = latencies(requests.replace(output_estimates=None), "vllm:work+learned")
    honest = latencies(requests.replace(output_estimates=requests.outputs), "vllm:work+learned")
    checked = latencies(requests, "vllm:work+learned")
    trusted = latencies(believed, "vllm:work", intervals="column")
    assert trusted[0] < honest[0] / 2.5
    assert checked[0] > 0.95 * honest[0]
    assert checked[1] < 0.9 * plain[1]


def test_fair_turns_keep_a_flood_from_the_others():
    flood = [*[0] * 300, *[1] * 20]
    arrivals = [*[0] * 300, *range(200, 2200, 100)]
    order = np.argsort(arrivals, kind="stable")
    instance = Instance(
        [200] * 320,
        [50] * 320,
        4000,
        np.array(arrivals)[order],
        seconds_per_step=0.01,
        clients=np.array(flood)[order],
    )
    latency = {}
    for name in ("vllm", "vllm+fair"):
        run = optsched.run(instance, name, clock=SMALL)
        assert (run.unfinished, run.check()) == (0, [])
        latency[name] = (run.completions - run.arrivals)[instance.clients == 1].mean()
    assert latency["vllm+fair"] < 0.2 * latency["vllm"]


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(1, 40)), min_size=80, max_size=80),
    st.sampled_from([1.0, 2.0, 3.5]),
)
def test_two_clients_that_always_wait_are_served_by_their_weights(rows, weight):
    prompts, outputs = np.array(rows).T
    clients = np.arange(80) % 2
    weights = np.where(clients, weight, 1.0)
    instance = Instance(
        prompts, outputs, 240, seconds_per_step=1.0, clients=clients, weights=weights
    )
    policy = replace(get_policy("vllm+fair"), max_num_seqs=1, async_scheduling=False)
    run = optsched.run(instance, policy, clock=SMALL)
    cost = ((prompts + 2 * outputs) / weights)[np.argsort(run.completions)]
    order = clients[np.argsort(run.completions)]
    served = np.stack([np.cumsum(np.where(order == client, cost, 0)) for client in (0, 1)])
    waiting = np.stack([np.cumsum(order == client) < 40 for client in (0, 1)]).all(axis=0)
    # Each is at most two requests ahead, and what was expected of their outputs too.
    most = 2 * (80 + 2 * 240)
    assert (abs(served[0] - served[1])[waiting] <= most).all()


def test_options_that_are_refused():
    with pytest.raises(PolicyError, match="in place of an order; leave one of them out"):
        get_policy("vllm:area+fair")
    with pytest.raises(PolicyError, match="has no rule 'fair', which is for vllm"):
        get_policy("area+fair")
    for name in ("vllm+gittins+learned", "vllm:edf+gittins+learned", "vllm:area+gittins"):
        with pytest.raises(PolicyError, match="add learned and such an order, as vllm:work"):
            get_policy(name)
    with pytest.raises(PolicyError, match="unknown rule 'gitins': did you mean 'gittins'"):
        get_policy("vllm:area+gitins+learned")


def test_learned_orders_that_age_go_by_the_arrivals_that_come_out():
    chats = optsched.family(
        "conversations", n=60, seed=2, memory=3000, rate=9, seconds_per_step=0.001, pause=1
    )
    aged, by_arrival, plain = (
        optsched.run(chats, replace(get_policy(name), enable_prefix_caching=False), clock=SMALL)
        for name in ("vllm:area,0.001+learned", "vllm", "vllm:area+learned")
    )
    assert aged.completions.tolist() == by_arrival.completions.tolist()
    assert plain.completions.tolist() != aged.completions.tolist()


@pytest.mark.parametrize("slower", [1, 2])
def test_orders_that_age_by_the_load_gain_and_keep_the_tail(slower):
    requests = overloaded(2)
    arrivals, claims = slower * requests.arrivals, requests.outputs
    requests = requests.replace(arrivals=arrivals, output_estimates=claims, clients=None)
    mean, p99 = {}, {}
    for name in ("vllm", "vllm:area,80+learned", "vllm:area,load+learned"):
        run = optsched.run(requests, name, clock=SMALL)
        latencies = run.completions - run.arrivals
        mean[name], p99[name] = latencies.mean(), np.percentile(latencies, 99)
    by_load = "vllm:area,load+learned"
    assert mean[by_load] < 0.9 * mean["vllm"]
    assert p99[by_load] < 1.1 * p99["vllm"]
    assert p99["vllm:area,80+learned"] > 1.15 * p99["vllm"]  # longer than anybody waits
