"""What an engine is told is what its order reads, or what its author says."""

from dataclasses import replace

import numpy as np
import pytest

from optsched import Instance, PriorityPolicy, family, run
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
