"""vLLM's rule of data-parallel engines against a literal twin, and against vLLM where it is."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from effort import share

from optsched.problem.routing import RouterState, vllm_dp
from optsched.problem.workers import get_router
from tests.literal_routing import DataParallel


def states(count):
    """Draw what vLLM's client may see, with many ties and with full caches."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        workers, memory = int(rng.integers(2, 10)), int(rng.integers(16, 2000))
        most = rng.choice([1, 3, 40], 3)
        waiting, running, sent = (rng.integers(0, each + 1, workers) for each in most)
        held = rng.integers(0, memory + 1, workers)
        none, request = np.zeros(workers, dtype=np.int64), int(rng.integers(0, 100))
        every, memories = np.arange(workers), np.full(workers, memory)
        counts = (waiting, running, held, none, none, none, sent)
        yield RouterState(0.0, request, 1, every, memories, *counts, None, ())


def test_vllms_rule_chooses_as_its_literal_twin():
    chosen = Counter()
    for state in states(share(10_000)):
        client, names = DataParallel(), ("waiting", "running", "held")
        client.start = state.request % len(state.workers)
        columns = [getattr(state, name).tolist() for name in names]
        loads = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        now = [{"waiting": 0, "running": sent} for sent in state.in_flight.tolist()]
        twin = client.choose(state.workers.tolist(), loads, state.memories.tolist(), now)
        assert vllm_dp(state) == twin
        chosen[twin == client.start - 1, bool(state.waiting[twin])] += 1
    assert len(chosen) == 4


def test_vllms_rule_chooses_as_vllm_does():
    core_client = pytest.importorskip("vllm.v1.engine.core_client")
    choose = core_client.DPLBAsyncMPClient.get_core_engine_for_request
    new = {"resumable": False, "data_parallel_rank": None, "pooling_params": None}
    for state in states(share(10_000)):
        engines = [bytes([rank]) for rank in state.workers]
        usage = state.held / state.memories
        counts = zip(state.waiting.tolist(), state.running.tolist(), usage.tolist(), strict=True)
        client = SimpleNamespace(
            streaming_reqs=set(),
            reqs_in_flight={},
            engine_inflight=Counter(dict(zip(engines, state.in_flight.tolist(), strict=True))),
            core_engines=engines,
            client_count=1,
            eng_start_index=state.request % len(engines),
            lb_engines=[list(each) for each in counts],
        )
        assert choose(client, SimpleNamespace(request_id="1", **new)) == engines[vllm_dp(state)]


def test_ages_of_counts_are_part_of_a_name():
    assert (get_router("vllm-dp").age, get_router("vllm-dp@0").age) == (0.1, 0)
    several = get_router("power-of-d:3@0.25")
    assert (several.name, several.choices, several.age) == ("power-of-d:3@0.25", 3, 0.25)
