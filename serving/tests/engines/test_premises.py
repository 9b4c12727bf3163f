"""vLLM stores a token one batch later than the papers, and is held to bounds that know of it."""

import json
from types import SimpleNamespace

import pytest

import optsched
from optsched import Instance, compare, get_clock
from optsched.experiments.regret_cells import Cell, RegretTask, perform
from optsched.policies import get_policies
from optsched.problem.premises import strongest

CLOCK = "llama-2-7b-a100"
LATER = "next-batch"


@pytest.fixture(scope="module")
def crowded():
    """Three prompts of 16 fit where tokens are stored later, and two where they are at once."""
    return Instance([16] * 40, [1] * 40, memory=48)


@pytest.mark.parametrize("clock", [CLOCK, "unit"])
def test_an_engine_is_held_to_the_bound_of_its_own_storage(crowded, clock):
    compared = compare(crowded, ["fcfs", "vllm"], clock=clock)
    at_once, later = compared.bounds
    engine = compared["vllm"]
    assert engine.total_latency < at_once.value
    assert later.value <= engine.total_latency
    assert compared.covering("fcfs") == (at_once, None)
    assert compared.covering("vllm") == (later, None)
    assert min(compared.gap("fcfs"), compared.gap("vllm")) >= 0
    assert strongest([at_once], engine.facts) == (
        None,
        "tokens are stored one batch later than the bound counts them",
    )
    content = compared.to_dict()
    assert [each["premises"]["storage"] for each in content["bounds"]] == ["at-once", LATER]
    assert content["bound"]["value"] == at_once.value
    assert "vllm: tokens are stored one batch later than the papers count them" in str(compared)


def test_routers_and_regret_keep_worlds_apart(crowded):
    found = optsched.routing_loss(crowded, 2, ["round-robin"], ["fcfs", "vllm"], clock=CLOCK)
    fcfs, engine = found
    assert min(fcfs.loss.low, engine.loss.low) >= 0
    assert engine.best.low < fcfs.best.low == found.best.low
    assert found.take is engine


def test_regret_is_measured_in_the_world_of_each_policy(crowded):
    source = SimpleNamespace(clock=get_clock(CLOCK), draw=lambda *drawn: crowded)
    policies = get_policies(["fcfs", "vllm"])
    cell = perform(
        RegretTask(source, policies, load=1.0, rate=1.0, horizon=1, seed=0, time_limit=0)
    )
    assert cell.later["policies"] == ["vllm"]
    assert cell.later["bound"] <= cell.later["best"] < cell.bound <= cell.best
    for policy in cell.latencies:
        low, high = cell.regret(policy)
        assert 0 <= low <= high
    assert Cell(**json.loads(json.dumps(cell.to_dict()))) == cell
