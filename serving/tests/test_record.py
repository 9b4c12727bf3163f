"""What a scheduler inside vLLM writes of requests and batches."""

import json
import sys
from dataclasses import replace

import fake_vllm
import literal_vllm
import numpy as np
import pytest
from vllm_runs import CLOCK

import optsched
import optsched_serving.plugin as inside
from optsched.clock import BatchContent, LinearClock

NAMES = ("OrderedScheduler", "PlannedScheduler")
CASE = literal_vllm.Settings(num_gpu_blocks=40, block_size=4, max_num_batched_tokens=30)


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """Put a fake vLLM in the place of the real one."""
    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in NAMES:
        monkeypatch.delitem(vars(inside), name, raising=False)
    yield
    for name in NAMES:
        vars(inside).pop(name, None)


def served(folder, requests, *, later, caching=False):
    """Serve requests that are there; return contents and times of batches, in order."""
    kind = type("Mine", (inside.PlannedScheduler,), {"now": lambda self: self.time, "time": 0.0})
    config, cache = fake_vllm.config(
        replace(CASE, async_scheduling=later), {"record": str(folder), "dry_run": caching}
    )
    config.cache_config.enable_prefix_caching = caching
    config.speculative_config = (
        object() if caching else None
    )  # the stand-in has no cache to plan by
    scheduler = kind(config, cache)
    for request in requests:
        scheduler.add_request(request)
    flying, expected, free_from, number = [], [], 0.0, 0
    while scheduler.requests:
        if len(flying) <= later and (batch := scheduler.schedule()).parts:
            content = literal_vllm.content_of(batch)
            free_from = max(free_from, scheduler.time) + CLOCK(content)
            flying.append((batch, free_from))
            expected.append((*content, CLOCK(content)))
            continue
        batch, scheduler.time = flying.pop(0)
        scheduler.update(batch, number)
        number += 1
    return expected


def drawn(count=40):
    """Return requests that are there at the start."""
    rng = np.random.default_rng(3)
    return [
        fake_vllm.Request(index, int(rng.integers(1, 40)), int(rng.integers(2, 30)), 0.0)
        for index in range(count)
    ]


@pytest.mark.parametrize("later", [False, True])
def test_batches_are_written_with_what_they_held_and_took(tmp_path, later):
    expected = served(tmp_path, drawn(), later=later)
    (path,) = tmp_path.glob("batches*.csv")
    with path.open(encoding="utf-8") as lines:
        assert next(lines) == ",".join((*BatchContent._fields, "seconds\n"))
    written = np.loadtxt(path, delimiter=",", skiprows=1)
    assert len(written) == len(expected) > 50
    assert np.abs(written[:, [0, 1, 2, 3, 5]] - np.array(expected)[:, [0, 1, 2, 3, 5]]).max() < 1e-6
    fit = LinearClock.fit(path, hinges=())
    assert fit.mean_error < 0.02


def test_requests_are_written_as_a_trace(tmp_path):
    requests = drawn()
    for request in requests:
        request.arrival = 1_700_000_000 + request.index / 8
        request.extra_args = {"client": "Ann" if request.index % 3 else "Bob"}
    facts = [(request.prompt, request.output) for request in requests]
    served(tmp_path, requests, later=False)
    (path,) = tmp_path.glob("requests*.jsonl")
    read = optsched.read_trace(path, 500, seconds_per_step=0.001)
    assert [*zip(read.prompts.tolist(), read.outputs.tolist(), strict=True)] == facts
    assert read.arrivals.tolist() == [125 * index for index in range(len(requests))]
    fine = optsched.read_trace(path, 500, seconds_per_step=1e-6)
    assert np.abs(fine.arrivals - 125_000 * np.arange(len(requests))).max() <= 5
    assert np.unique(read.clients).size == 2
    assert (read.clients[1::3] == read.clients[1]).all()
    assert read.hash_ids is None
    text = path.read_text(encoding="utf-8")
    assert "Ann" not in text
    assert json.loads(text.splitlines()[0])["label"] != "0"


def test_blocks_that_are_alike_are_written_as_numbers_of_one_file(tmp_path):
    ids = []
    for folder in ("one", "two"):
        requests = [fake_vllm.Request(index, 10, 3, float(index)) for index in range(4)]
        for request in requests:
            alike = b"alike" if request.index < 3 else b"other"
            request.block_hashes = [alike, b"%d" % request.index]
        served(tmp_path / folder, requests, later=False, caching=True)
        (path,) = (tmp_path / folder).glob("requests*.jsonl")
        read = optsched.read_trace(path, 500)
        assert read.hash_block == CASE.block_size
        ids.append(np.array(read.hash_ids))
    for found in ids:
        assert found.shape == (4, 3)  # two full blocks, and what is left of the prompt
        assert np.unique(found[:, 0]).size == 2
        assert np.unique(found[:, 1:]).size == 8
    assert not np.isin(ids[0], ids[1]).any()
