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


def served(folder, requests, *, later, caching=False, plain=False, start=0.0):
    """Serve requests; return contents and times of batches, in order.

    They are there at once, or, by vLLM's own order (`plain`), come when they arrive.
    """
    kind = type("Mine", (inside.PlannedScheduler,), {"now": lambda self: self.time, "time": start})
    config, cache = fake_vllm.config(
        replace(CASE, async_scheduling=later), {"record": str(folder), "dry_run": caching or plain}
    )
    config.cache_config.enable_prefix_caching = caching
    config.speculative_config = (
        object() if caching else None
    )  # the stand-in has no cache to plan by
    scheduler = kind(config, cache)
    coming = [*requests] if plain else []
    for request in () if plain else requests:
        scheduler.add_request(request)
    flying, expected, free_from, number = [], [], start, 0
    while scheduler.requests or coming:
        if not scheduler.requests:
            scheduler.time = max(scheduler.time, coming[0].arrival)
        while coming and coming[0].arrival <= scheduler.time:
            scheduler.add_request(coming.pop(0))
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


@pytest.mark.parametrize("later", [False, True])
def test_the_prediction_is_held_against_what_was_recorded(tmp_path, optsched_json, later):
    start = 1_790_000_000.0
    requests = drawn()
    for request in requests:
        request.arrival = start + request.index / 8
    served(tmp_path, requests, later=later, plain=True, start=start)
    clock = tmp_path / "true.json"
    CLOCK.to_json(clock)
    engine = ("--num-gpu-blocks", 40, "--block-size", 4, "--max-num-batched-tokens", 30,
              "--max-num-seqs", 30, "--no-enable-prefix-caching",
              "--async-scheduling" if later else "--no-async-scheduling")  # fmt: skip
    found = optsched_json("clock", "check", clock, tmp_path, *engine)
    for metric in ("latency", "ttft", "tpot"):
        for measured, simulated in found[metric].values():
            assert simulated == pytest.approx(measured, rel=1e-3, abs=1e-5)
    own = optsched_json("clock", "check", tmp_path, *engine)  # on a clock fitted to its batches
    assert own["latency"]["mean"][0] == found["latency"]["mean"][0]
    assert own["latency"]["mean"][1] == pytest.approx(own["latency"]["mean"][0], rel=0.05)
    made = optsched_json("clock", "fit", tmp_path, "--out", tmp_path / "mine.json")
    assert abs(made["mean_error"]) < 0.05
    slow = tmp_path / "slow.json"
    CLOCK.scaled(1.2).to_json(slow)
    scaled = optsched_json("clock", "fit", tmp_path, "--clock", slow, *engine)
    assert scaled["clock"]["constant"] == pytest.approx(CLOCK.constant, rel=0.05)


def test_a_folder_of_several_runs_or_of_none_that_ended_is_refused(
    tmp_path, optsched_json, refused
):
    said = refused("clock", "check", tmp_path, "--memory", 99)
    assert "is no folder that the plugin recorded; put the name of a clock before the" in said
    served(tmp_path, drawn(), later=False)
    check = ("clock", "check", "unit", tmp_path, "--memory", 99)
    served(tmp_path, drawn(), later=False, start=9.0)
    assert "has the requests of 2 engines or starts of one; name a file of it" in refused(*check)
    served(tmp_path, [], later=False, start=5.0)  # an engine that was never asked
    optsched_json("clock", "fit", tmp_path)  # of all batches
    for each in tmp_path.glob("requests*.jsonl"):
        each.unlink()
    assert "has no requests: none was complete" in refused(*check)


def test_a_record_without_times_of_tokens_is_a_trace_but_no_measured_log(tmp_path, refused):
    served(tmp_path, drawn(), later=False)
    (path,) = tmp_path.glob("requests*.jsonl")
    old = [json.loads(line) for line in path.read_text().splitlines()]
    for each in old:
        del each["first_token_s"], each["last_token_s"]
    path.write_text("\n".join(map(json.dumps, old)))
    assert len(optsched.read_trace(path, 500)) == len(old)
    said = refused("clock", "check", CLOCK.name, tmp_path, "--memory", 500)
    assert "has no times of tokens, only requests; pass a measured log" in said


def test_of_a_session_only_what_follows_its_last_prompt_counts(tmp_path):
    own = {"now": lambda self: self.time, "time": 0.0}
    settings = {"record": str(tmp_path), "order": None}
    scheduler = fake_vllm.made("OrderedScheduler", CASE, settings, **own)
    scheduler.add_request(fake_vllm.Request(0, 5, 3, 0.0, resumable=True))
    scheduler.add_request(fake_vllm.Request(1, 5, 30, 0.0))
    arrivals = {20: fake_vllm.Request(0, 4, 2, 20.0, resumable=True)}
    for number in range(60):
        scheduler.time = float(number)
        if number in arrivals:
            scheduler.add_request(arrivals[number])
            scheduler.requests["0"].resumable = False  # its last prompt
        if number == 40:
            scheduler.finish(scheduler.requests["1"]) if "1" in scheduler.requests else None
        batch = scheduler.schedule()
        scheduler.time += 0.5
        scheduler.update(batch, number)
        if not scheduler.requests:
            break
    (path,) = tmp_path.glob("requests*.jsonl")
    lines = {row["arrival_s"]: row for row in map(json.loads, path.read_text().splitlines())}
    assert lines[20.0]["first_token_s"] == 20.5
    assert lines[20.0]["last_token_s"] == 21.5
    assert lines[0.0]["first_token_s"] == 0.5
    assert not scheduler._recorder._first_s  # noqa: SLF001
