"""What becomes of requests when hooks of ours in vLLM fail, on a scheduler with its interface."""

import logging
import socket
import sys
from heapq import heapify
from math import inf
from types import FunctionType

import fake_vllm
import literal_vllm
import numpy as np
import pytest
from effort import examples
from fake_vllm import NAMES, serve
from hypothesis import given
from hypothesis import strategies as st

import optsched_serving.plugin as inside
from optsched_serving.learning import Aging, OutputLearner, TokenCounters
from optsched_serving.plugin import scheduler as module
from optsched_serving.plugin.plan import AdmissionPlan, Foresight
from optsched_serving.plugin.scheduler import Recorder, Scheduler, Watch

SETTINGS = ({}, {"order": None}, {"fair": True}, {"patience": 0.2}, {"log_error": 0.4})
PARTS = (Foresight, AdmissionPlan, Watch, Recorder, OutputLearner, TokenCounters, Aging)
#: What stands between vLLM and our parts, or is called when a server starts.
BETWEEN = {
    *("__init__", "add_request", "schedule", "_preempt_request", "_free_request", "_if_it_fits"),
    *(
        "update_from_output",
        "_guarded",
        "_rank",
        "_rank_all",
        "_put",
        "_try_again",
        "_alone",
        "__new__",
        "serve",
    ),
}
#: What the stand-in has none of, a prefix cache; a real vLLM comes here (`vllm_campaign.py`).
CACHED = {"_blocks_of", "_shared", "_in_use"}
CASE = literal_vllm.Settings(
    num_gpu_blocks=14, block_size=4, max_num_seqs=4, max_num_batched_tokens=24
)


@pytest.fixture(autouse=True, scope="module")
def vllm():
    """Put a fake vLLM in the place of the real one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake_vllm.modules().items():
            patch.setitem(sys.modules, name, module)
        for name in NAMES:
            vars(inside).pop(name, None)
        yield
    for name in NAMES:
        vars(inside).pop(name, None)


#: All functions of ours that a running scheduler may call, by owner and name.
HOOKS = [
    *((owner, name) for owner in PARTS for name in vars(owner) if name not in BETWEEN | CACHED),
    *((None, name) for name in ("_arrives", "_key", "_look", "_promote", "_ends", "_tell")),
    *((None, name) for name in ("_shares", "limit_of", "now", "fits", "row_of", "_joins")),
    (AdmissionPlan, "__init__"),
]
HOOKS = [
    (owner, name)
    for owner, name in HOOKS
    if owner is None or isinstance(vars(owner)[name], FunctionType)
]


def test_a_port_that_is_taken_switches_counting_off(caplog):
    pytest.importorskip("prometheus_client", reason="the client of Prometheus is not installed")
    with socket.create_server(("", 0)) as taken:
        scheduler = made(NAMES[0], {"metrics_port": taken.getsockname()[1]})
    assert "counting" in scheduler.off
    assert "the counters stand still" in caplog.text
    serve(scheduler, np.random.default_rng(1))


def test_the_list_of_hooks_is_complete():
    own = {each for each, member in vars(Scheduler).items() if isinstance(member, FunctionType)}
    assert own - BETWEEN - CACHED == {each for owner, each in HOOKS if owner is None}


def made(name, extra):
    """Make a scheduler of a name, which counts."""
    attributes = {"time": 0.0, "now": lambda self: self.time, "log_stats": True}
    return fake_vllm.made(name, CASE, extra, **attributes)


@examples(200)
@given(st.sampled_from(NAMES), st.sampled_from(SETTINGS), st.integers(0, 2**32))
def test_sessions_aborts_and_resets_at_any_moment_do_no_harm(name, extra, seed):
    scheduler = made(name, extra)
    serve(scheduler, np.random.default_rng(seed))
    assert not {*scheduler.off.values()} & {"it failed"}


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
def test_requests_that_come_closer_to_the_front_leave_a_heap(drawn):
    heap = [fake_vllm.Request(at, 1, 1, at, key) for at, (key, _) in enumerate(drawn)]
    heapify(heap)
    sooner = {each for each in heap if drawn[each.index][1]}
    for request in sooner:
        request.priority = -inf
    module._move_up(heap, sooner)  # noqa: SLF001
    inner = range(1, len(heap))
    assert not any(heap[at] < heap[(at - 1) // 2] for at in inner)
    assert sorted(each.index for each in heap) == [*range(len(drawn))]


class InjectedError(Exception):
    """What a hook raises."""


#: What only a plan calls.
PLANNING = {"fits", "row_of", "_shares", "chances", "_joins"}


@pytest.mark.parametrize(
    ("name", "owner", "hook"),
    [
        (name, *each)
        for name in NAMES
        for each in HOOKS
        if "Planned" in name or (each[0] is not AdmissionPlan and each[1] not in PLANNING)
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_hook_that_raises_never_reaches_the_engine(
    name, owner, hook, monkeypatch, caplog, tmp_path
):
    fired = 0
    for seed, extra in enumerate(3 * SETTINGS):
        rng = np.random.default_rng(seed)
        scheduler = made(name, extra | ({"record": str(tmp_path)} if seed % 2 else {}))
        holder = type(scheduler) if owner is None else owner
        calls, does = iter(range(10**6)), getattr(holder, hook)
        first = int(rng.integers(0, 6))

        def failing(*args, calls=calls, does=does, first=first, **more):
            if next(calls) < first:
                return does(*args, **more)
            raise InjectedError(hook)

        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(holder, hook, failing)
            serve(scheduler, rng)
        told = [record for record in caplog.records if record.exc_info]
        assert all(record.exc_info[0] is InjectedError for record in told)
        assert len({record.getMessage() for record in told}) == len(told) <= 4
        assert bool(told) == ("it failed" in scheduler.off.values())
        fired += bool(told)
        if fired > 3:
            break
    assert fired


def test_a_part_that_failed_is_tried_again_however_often_it_fails(monkeypatch, caplog):
    at = [0.0]
    monkeypatch.setattr("optsched_serving.plugin.scheduler.monotonic", lambda: at[0])
    scheduler = made("PlannedScheduler", {"record": None})
    broken = [True]
    expect = Foresight.expect

    def fails(self, *given):
        if broken[0]:
            raise InjectedError
        return expect(self, *given)

    monkeypatch.setattr(Foresight, "expect", fails)

    def ask():
        request = fake_vllm.Request(len(scheduler.requests), 3, 2, at[0])
        scheduler.add_request(request)
        return scheduler.off

    assert ask()["learning"] == ask()["order"] == "it failed"
    assert "failed and is off for 60 s; requests come by arrival" in caplog.text
    broken[0], at[0] = False, 59.0
    assert "learning" in ask()
    at[0] = 61.0
    assert "it failed" not in ask().values()
    broken[0] = True
    for _ in range(20):
        at[0] += 61
        assert ask()["learning"] == "it failed"
    broken[0], at[0] = False, at[0] + 61
    assert "it failed" not in ask().values()


def test_what_a_configuration_forbids_stays_off_when_a_part_is_tried_again(monkeypatch):
    at = [0.0]
    monkeypatch.setattr("optsched_serving.plugin.scheduler.monotonic", lambda: at[0])
    scheduler = made("OrderedScheduler", {})
    why = scheduler.off["plan"]
    with monkeypatch.context() as patch:
        patch.setattr(Foresight, "expect", lambda *_: 1 / 0)
        scheduler.add_request(fake_vllm.Request(0, 3, 2, 0.0))
    assert scheduler.off == {"learning": "it failed", "order": "it failed", "plan": why}
    at[0] = 61.0
    scheduler.add_request(fake_vllm.Request(1, 3, 2, 0.0))
    assert scheduler.off == {"plan": why}
