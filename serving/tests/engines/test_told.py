"""What an engine is told is what its order reads, or what its author says."""

from dataclasses import replace

import numpy as np
import pytest

from optsched import Instance, PriorityPolicy, compare, family, run
from optsched._internal.numbers import number
from optsched.clock import LinearClock
from optsched.policies import get_policy

TIMED = family("mixed", n=20, memory=20_000, rate=4, seed=3, seconds_per_step=1e-6)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (lambda instance: instance.prompts, "nothing"),
        (lambda instance: -instance.arrivals, "nothing"),
        (lambda instance: instance.outputs, "outputs"),
        (lambda instance: instance.peaks, "outputs"),
        (lambda instance: instance.areas / instance.prompts, "outputs"),
        (lambda instance: np.array(instance.columns()["outputs"]), "outputs"),
        (lambda instance: instance.replace(name="x").outputs, "outputs"),
        (lambda instance: instance.take(range(len(instance))).outputs, "outputs"),
    ],
)
def test_an_order_in_an_engine_is_told_what_its_key_reads(key, told):
    order = PriorityPolicy("mine", "", key)
    engine = replace(get_policy("vllm"), order=order)
    assert run(TIMED, engine, clock="llama-3.1-8b-rtx4090").knows == told
    for word in ("nothing", "outputs"):  # as its author says
        said = replace(engine, order=replace(order, reads=word))
        assert said.knows(TIMED) == word


def test_learned_orders_are_told_what_clients_claim():
    requests = Instance([4, 4, 4], [3, 5, 2], 40, [0, 1, 2], seconds_per_step=1.0)
    claimed = requests.replace(output_estimates=[3, 4, 4])
    clock = LinearClock("dyadic", 1.0, 1 / 64, 1 / 64, 1 / 1024)
    for name in ("vllm+learned", "vllm:area+learned", "vllm+fair"):
        policy = replace(get_policy(name), block_size=1)
        told = [run(each, policy, clock=clock).knows for each in (requests, claimed)]
        assert told == ["nothing", "forecast"]


def waiting(seed):
    """Requests of which some wait, so that to know outputs helps."""
    return family("chat-and-summaries", n=60, rate=4, seed=seed, seconds_per_step=1e-3)


def test_a_told_policy_stands_beside_itself_with_rough_forecasts():
    requests, clock = waiting(1), "llama-2-70b-2xa100"
    found = compare(requests, ["vllm", "vllm:work+plan"], clock=clock)
    assert found.best.policy == "vllm:work+plan"
    errors = np.random.default_rng(0).normal(0, 0.5, 60)
    guessed = np.clip(
        np.rint(requests.outputs * np.exp(errors)), 1, requests.memory - requests.prompts
    ).astype(int)
    told = requests.replace(output_lower=guessed, output_upper=guessed)
    again = run(told, "vllm:work+plan", clock=clock, intervals="column")
    mean = again.mean_latency
    before, tail = (float(np.percentile(each.latencies, 99)) for each in (found.best, again))
    assert found.to_dict()["with_rough_forecasts"] == {
        "policy": "vllm:work+plan",
        "log_error": 0.5,
        "mean_latency": [found.best.mean_latency, mean],
        "p99_latency": [before, tail],
    }
    assert found.headline[-1].endswith(
        f"; with rough forecasts (log-error 0.5) it has {number(mean)} s, and a p99 of "
        f"{number(tail)} s in place of {number(before)} s."
    )
    alone = compare(requests, "vllm:work+plan", clock=clock)
    assert "none can be deployed; with rough forecasts" in alone.headline[0]
    assert compare(requests, ["vllm", "work"], clock=clock).with_rough_forecasts is None


def test_several_instances_have_the_mean_with_rough_forecasts():
    both = compare([waiting(1), waiting(2)], ["vllm", "vllm:work+plan"], clock="llama-2-70b-2xa100")
    parts = [part.with_rough_forecasts for part in both]
    told, mean = both.to_dict()["with_rough_forecasts"]["mean_latency"]
    assert told == pytest.approx(both.mean("vllm:work+plan").mean)
    assert mean == pytest.approx(np.mean([part["mean_latency"][1] for part in parts]))
    assert f"(log-error 0.5) it has {number(mean)}, and a p99 of" in both.notes[-1]
