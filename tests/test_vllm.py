"""Orders and plans inside vLLM, on a scheduler with its interface and, where it is, on itself."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from math import ceil, inf, log

import fake_vllm
import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import optsched.vllm as inside
from optsched import Beliefs, Instance, OptschedError, PriorityPolicy
from optsched.clock import LinearClock
from optsched.policies import get_policy
from optsched.vllm import Foresight, Outlook, Settings, watch
from optsched.vllm.plan import Plan, Row

CLOCK = LinearClock("all", 0.02, 0.001, 0.003, 0.0005, 0.0001, 0.0002)
NAMES = [f"{kind}{mode}Scheduler" for kind in ("Ordered", "Planned") for mode in ("", "Async")]
CASE = literal_vllm.Settings(num_gpu_blocks=24, block_size=4, max_num_seqs=8)


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """Put a fake vLLM in the place of the real one; return a function that changes it."""

    def put(**options):
        for name, module in fake_vllm.modules(**options).items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in NAMES:
            monkeypatch.delitem(vars(inside), name, raising=False)

    put()
    yield put
    for name in NAMES:
        vars(inside).pop(name, None)


def made(name, case=CASE, extra=None, **attributes):
    """Make a scheduler of a name."""
    kind = type("Mine", (getattr(inside, name),), attributes)
    case = replace(case, async_scheduling="Async" in name)
    return kind(*fake_vllm.config(case, extra))


@st.composite
def cases(draw):
    """Return options, requests (prompt, output, arrival) and forecasts; memory is short."""
    size = draw(st.sampled_from([1, 2, 4]))
    blocks, seqs = draw(st.integers(5, 24)), draw(st.integers(1, 8))
    case = literal_vllm.Settings(
        num_gpu_blocks=blocks,
        block_size=size,
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 5 * size + seqs)),
        async_scheduling=draw(st.booleans()),
    )
    most = (blocks - 1) * size + 1
    requests, forecasts = [], []
    for _ in range(draw(st.integers(1, 12))):
        output = draw(st.integers(1, min(25, most - 1)))
        prompt = draw(st.integers(1, min(4 * size + 6, most - output)))
        requests.append((prompt, output, draw(st.sampled_from([0.0, 0.0, 0.05, 0.12, 2.0]))))
        forecasts.append(draw(st.sampled_from([output, output, 1, 2 * output, 40])))
    return case, requests, forecasts


KEYS = {
    "mc-sf": lambda prompt, left: left,
    "area": lambda prompt, left: prompt * left + left * (left + 1) / 2,
}


def literal_key(order, aging):
    """Return the key of a request in an order, as the literal scheduler asks for it."""
    if order is None:
        return None
    if aging is None:
        return lambda prompt, left, _: KEYS[order](prompt, left)
    return lambda prompt, left, request: log(KEYS[order](prompt, left)) + request.arrival / aging


@examples(150)
@given(cases(), st.sampled_from([None, *KEYS]), st.booleans(), st.sampled_from([None, 0.05, 80.0]))
def test_batches_are_those_of_the_literal_scheduler_with_foresight(drawn, order, plan, aging):
    case, requests, forecasts = drawn
    by_policy = replace(case, policy="fcfs" if order is None else "priority")

    def request(index, kind, **more):
        prompt, output, arrival = requests[index]
        return kind(index, prompt, output, arrival, **more)

    known = literal_vllm.Foresight(forecasts, forecasts, literal_key(order, aging), plan)
    twin = literal_vllm.run(
        [request(i, literal_vllm.Request) for i in range(len(requests))],
        by_policy,
        CLOCK,
        scheduler=literal_vllm.with_foresight(known),
    )
    name = f"{'Planned' if plan else 'Ordered'}{'Async' if case.async_scheduling else ''}Scheduler"
    given = {"order": order, "aging": aging}
    ours = literal_vllm.run(
        [
            request(i, fake_vllm.Request, extra_args={"expected_output": forecasts[i]})
            for i in range(len(requests))
        ],
        replace(case),
        CLOCK,
        scheduler=lambda case: getattr(inside, name)(*fake_vllm.config(case, given)),
    )
    assert [batch.row for batch in ours.batches] == [batch.row for batch in twin.batches]
    assert ours.contents == twin.contents
    assert [r.last for r in ours.requests] == [r.last for r in twin.requests]


def foresight(usable=100, sizes=(4,), longest=200, **given):
    return Foresight(Settings(**given), usable, sizes, longest)


def asked(prompt=10, index=0, **extra):
    return fake_vllm.Request(index, prompt, 5, 0.0, extra_args=extra)


def test_a_forecast_is_cut_to_the_limit_and_never_below_a_token():
    look = foresight(factor=1.5).outlook
    assert look(asked(expected_output=20), 5, 1000) == Outlook(15, 25, -1)
    assert look(asked(expected_output=20), 30, 1000) == Outlook(1, 1, -1)
    assert look(asked(expected_output=20), 5, 15) == Outlook(10, 10, -1)
    assert look(asked(expected_output="20"), 0, 1000).left == 20  # HTTP may send text


@pytest.mark.parametrize("wrong", [0, -3, "many", float("nan"), inf, None, [5]])
def test_what_is_no_forecast_is_left_out(wrong):
    seen = foresight()
    seen.learn(asked(), 40)
    assert seen.outlook(asked(expected_output=wrong), 0, 1000).left == 40


def test_outputs_without_a_forecast_are_learnt_by_client_and_by_prompt():
    seen = foresight()
    assert seen.outlook(asked(), 0, 1000).left == 256  # nothing is known yet
    for _ in range(400):
        seen.learn(asked(client="summaries"), 10)
        seen.learn(asked(client="stories"), 500)
        seen.learn(asked(prompt=3), 100)
    assert seen.outlook(asked(client="summaries"), 0, 1000).left < 20
    assert seen.outlook(asked(client="stories"), 0, 1000).left > 480
    assert 95 < seen.outlook(asked(prompt=2), 0, 1000).left < 110  # 2 and 3: as many bits
    assert 150 < seen.outlook(asked(prompt=99), 0, 1000).left < 260  # the mean of all
    assert (
        seen.outlook(asked(prompt=2), 70, 1000).left == seen.outlook(asked(prompt=2), 0, 1000).left
    )


def test_a_completed_request_is_learnt_and_an_aborted_one_is_not():
    scheduler = made("OrderedScheduler")
    for index, (status, output) in enumerate([("FINISHED_ABORTED", 300), ("FINISHED_STOPPED", 9)]):
        request = asked(index=index)
        scheduler.add_request(request)
        request.made, request.status.name = output, status
        scheduler._free_request(request)  # noqa: SLF001
    assert scheduler.foresight.outlook(asked(), 0, 1000).left == 9


def test_beliefs_give_the_mean_of_what_is_left():
    seen = foresight(log_error=0.5)
    belief = Beliefs.around(np.arange(1, 201), 0.5, 200)
    for forecast, made_so_far in ((20, 0), (20, 25), (150, 150), (3, 190)):
        look = seen.outlook(asked(expected_output=forecast), made_so_far, 10_000)
        chances = belief.chances[belief.rows[forecast - 1]]
        outputs = np.arange(1, 201)
        later = outputs > made_so_far
        mean = (chances * outputs)[later].sum() / chances[later].sum() - made_so_far
        assert look.left == pytest.approx(mean, abs=1)
        assert look.row >= 0


@examples(60)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 60), st.integers(1, 60)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 1),
    st.integers(1, 200),
)
def test_a_plan_with_beliefs_keeps_mean_and_deviation_below_the_blocks(group, lag, usable):
    seen = foresight(usable, longest=120, log_error=0.4, deviations=1.5)
    belief = Beliefs.around(np.arange(1, 121), 0.4, 120)
    limit = 121
    rows = []
    for p, m, forecast in group:
        look = seen.outlook(asked(p, expected_output=forecast), m, limit)
        rows.append(Row(p + m, m, limit, look.planned, look.row))
    most = 0.0
    for ahead in range(1, limit + 1):
        mean = variance = 0.0
        for prompt, m, forecast in group:
            chances = belief.chances[belief.rows[forecast - 1]]
            runs = chances[m + max(ahead - lag, 1) - 1 :].sum() / chances[m:].sum()
            if m + ahead - lag > limit:
                runs = 0.0
            blocks = ceil((prompt + m + min(ahead, limit - m) - 1) / 4)
            mean += runs * blocks
            variance += runs * (1 - runs) * blocks**2
        if ahead <= 8:  # where the routine looks at every batch
            most = max(most, mean + 1.5 * variance**0.5)
    if most > usable + 1e-6:
        assert not Plan(seen, rows[1:], lag).admits(rows[0])


ROWS = st.builds(
    lambda prompt, made, left: Row(prompt + made, made, made + left, left),
    *(st.integers(1, 30), st.integers(0, 30), st.integers(1, 40)),
)


@st.composite
def groups(draw):
    """Return requests, the blocks that each holds, which may be shared, their size and the lag."""
    rows = draw(st.lists(ROWS, max_size=6))
    size, lag = draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 1))
    held, unused = [], iter(range(1, 1000))
    for row in rows:
        count = draw(st.integers(0, -(-row.tokens // size)))
        others = draw(st.sampled_from(held)) if held else []
        found = others[: draw(st.integers(0, min(count, len(others))))]
        held.append([*found, *(next(unused) for _ in range(count - len(found)))])
    return rows, held, size, lag


def different_blocks(rows, held, size, lag, ahead):
    """Count the blocks that requests will hold, each once, so many batches ahead."""
    there, more = set(), 0
    for row, blocks in zip(rows, held, strict=True):
        if row.left + lag >= ahead:
            there |= set(blocks)
            more += ceil((row.tokens + min(ahead, row.left) - 1) / size) - len(blocks)
    return len(there) + more


@examples(300)
@given(groups(), st.lists(ROWS, min_size=1, max_size=4), st.data())
def test_a_plan_counts_different_blocks_batch_by_batch(drawn, candidates, data):
    rows, held, size, lag = drawn
    seen = foresight(2000, sizes=(size,), room=data.draw(st.sampled_from([0.006, 0.02, 0.05])))
    arrays = [np.array(blocks, dtype=np.int64) for blocks in held]
    plan = Plan(seen, rows, lag, lambda: arrays, len(set().union(*held)) < sum(map(len, held)))
    unused = iter(range(1000, 2000))
    for row in candidates:
        others = data.draw(st.sampled_from([*held, []]))
        hits = others[: data.draw(st.integers(0, min(len(others), (row.tokens - 1) // size)))]
        most = max(
            different_blocks([*rows, row], [*held, hits], size, lag, ahead)
            for ahead in range(1, 80)
        )
        assert plan.admits(row, hits) == (most <= seen.room)
        if most > seen.room:
            continue
        blocks = [*hits, *(next(unused) for _ in range(ceil(row.tokens / size) - len(hits)))]
        rows, held = [*rows, row], [*held, blocks]
        arrays.append(np.array(blocks, dtype=np.int64))
        plan.joined(row, lambda: arrays[-1])


def test_a_history_says_what_requests_without_a_forecast_make():
    prompts = [*range(1, 51), *range(101, 151)]
    past = Instance(prompts, [10] * 50 + [120] * 50, memory=1000)
    seen = foresight(history=past)
    short, long = (seen.outlook(asked(prompt=p), 0, 10_000) for p in (4, 150))
    assert 9 <= short.left <= 15
    assert 110 <= long.left <= 125
    assert seen.outlook(asked(prompt=10**6), 0, 10_000) == long
    assert seen.outlook(asked(expected_output=7), 0, 10_000) == Outlook(7, 7, -1)
    both = foresight(history=past, log_error=0.2)
    assert both.outlook(asked(prompt=4), 0, 10_000).left == short.left
    assert both.outlook(asked(expected_output=7), 0, 10_000).row >= 0


def test_whoever_waited_beyond_its_patience_comes_first_in_order_of_arrival():
    scheduler = made("OrderedScheduler", extra={"patience": 10}, now=lambda self: 15.0)
    arrivals = [0.0, 2.0, 7.0, 8.0]
    for index, (arrival, output) in enumerate(zip(arrivals, (90, 50, 9, 5), strict=True)):
        request = fake_vllm.Request(index, 10, 5, arrival, extra_args={"expected_output": output})
        scheduler.add_request(request)
    assert [request.index for request in scheduler.waiting] == [3, 2, 1, 0]
    batch = scheduler.schedule()
    assert [request.index for request, *_ in batch.parts] == [0, 1, 3, 2]


def test_a_plan_stands_aside_where_it_cannot_hold(caplog):
    class SlidingWindowSpec(fake_vllm.FullAttentionSpec):
        pass

    given = {"spec": SlidingWindowSpec}
    settings = replace(CASE, async_scheduling=True)
    aside = inside.PlannedAsyncScheduler(*fake_vllm.config(settings, **given))
    assert not aside.plans
    (line,) = caplog.messages
    assert line == (
        "optsched.vllm.PlannedAsyncScheduler only orders and plans nothing: layers of the kind "
        "SlidingWindowSpec do not keep all tokens"
    )
    assert made("PlannedAsyncScheduler").plans
    for name in ("speculative_config", "kv_transfer_config"):
        config, cache = fake_vllm.config(settings)
        setattr(config, name, object())
        assert not inside.PlannedAsyncScheduler(config, cache).plans
    assert len(caplog.messages) == 3


def test_an_order_without_a_plan_leaves_requests_without_forecasts_in_order_of_arrival():
    """By what all outputs are in the mean, long prompts were preempted again and again."""
    prompts = [300, 5, 100, 20]
    for kind, order in (("Ordered", [0, 1, 2, 3]), ("Planned", [1, 3, 2, 0])):
        scheduler = made(f"{kind}Scheduler", case=replace(CASE, num_gpu_blocks=900))
        for index, prompt in enumerate(prompts):
            scheduler.add_request(fake_vllm.Request(index, prompt, 5, index * 0.1))
        assert [request.index for request in scheduler.waiting] == order
    scheduler = made("OrderedScheduler", now=lambda self: 1.0)
    for index, output in enumerate((50, 5)):
        scheduler.add_request(asked(index=index, expected_output=output))
    scheduler.add_request(fake_vllm.Request(2, 10, 5, 0.0))  # as the others in the mean
    assert [request.index for request in scheduler.waiting] == [1, 2, 0]


def test_clients_priorities_come_first_where_the_server_goes_by_them():
    scheduler = made("PlannedScheduler", case=replace(CASE, policy="priority"))
    for index, (priority, output) in enumerate([(1, 5), (0, 90), (1, 3), (0, 40)]):
        request = asked(index=index, expected_output=output)
        request.priority = priority
        scheduler.add_request(request)
    assert [request.index for request in scheduler.waiting] == [3, 1, 2, 0]


def test_nothing_is_kept_of_requests_that_have_left():
    scheduler = made("PlannedScheduler", extra={"patience": 100})
    for index in range(300):
        request = asked(index=index, expected_output=9)
        scheduler.add_request(request)
        request.status.name = ("FINISHED_ABORTED", "FINISHED_STOPPED")[index % 2]
        scheduler._free_request(request)  # noqa: SLF001
    watch = scheduler.watch
    kept = (scheduler._seen, scheduler._by_arrival, watch._waiting)  # noqa: SLF001
    assert not any(kept)
    assert len(watch._heap) < 100  # noqa: SLF001


def test_counters_say_what_happened(caplog, monkeypatch):
    metrics = {}
    client = type(sys)("prometheus_client")

    class Metric:
        def __init__(self, name, text, labels, **options):
            self.value = 0.0
            metrics[name] = self

        def labels(self, engine):
            assert engine == 0
            return self

        def inc(self, more):
            self.value += more

        def set(self, value):
            self.value = value

    client.Counter = client.Gauge = Metric
    monkeypatch.setitem(sys.modules, "prometheus_client", client)
    watch._metrics.cache_clear()  # noqa: SLF001
    monkeypatch.setattr(logging.getLogger("vllm.optsched"), "level", logging.INFO)
    requests = [
        fake_vllm.Request(index, 8, output, arrival, extra_args={"expected_output": output + 5})
        for index, (output, arrival) in enumerate([(20, 0.0), (20, 0.0), (2, 0.05)])
    ]
    now = iter(range(0, 100_000, 100))
    attributes = {"now": lambda self: next(now), "log_stats": True}
    kind = type("Mine", (inside.PlannedScheduler,), attributes)
    case, given = replace(CASE, num_gpu_blocks=10), {"order": "mc-sf", "aging": 0.01}
    make = lambda case: kind(*fake_vllm.config(case, given))  # noqa: E731
    literal_vllm.run(requests, case, CLOCK, scheduler=make).engine.schedule()
    watch._metrics.cache_clear()  # noqa: SLF001
    assert metrics["optsched:admitted"].value == 3
    assert metrics["optsched:refused"].value > 0
    assert metrics["optsched:promoted"].value == 1  # before the short one that came later
    assert metrics["optsched:asked"].value == 24
    assert metrics["optsched:waiting"].value == 0
    assert metrics["optsched:forecast_error"].value == pytest.approx(15 / 42)
    assert "3 admissions, 20 refused by the plan, 1 promoted by age" in caplog.messages[-1]


def test_an_order_is_a_name_a_policy_or_a_function(monkeypatch):
    def longest_first(instance):
        return -instance.outputs

    module = type(sys)("my.orders")
    module.longest_first = longest_first
    monkeypatch.setitem(sys.modules, "my.orders", module)
    for order in (longest_first, "my.orders:longest_first", PriorityPolicy("x", "", longest_first)):
        assert foresight(order=order).key(10, 7) == -7
    assert foresight(order="mc-sf-total", aging=None).key(10, 7) == 17
    work = foresight(5000, order="work", clock="llama-2-70b-2xa100", aging=None)
    for prompt, left in ((10, 7), (2500, 800), (1, 1)):
        alone = get_policy("work").keys(Instance([prompt], [left], 20_000), work.clock)[0]
        assert work.key(prompt, left) == pytest.approx(alone, rel=1e-12)


def test_orders_of_ours_age_with_the_arrival_and_others_do_not():
    plain, aged = (foresight(order="area", aging=aging) for aging in (None, 40.0))
    assert aged.key(10, 7, 100.0) == log(plain.key(10, 7, 100.0)) + 2.5
    assert plain.key(10, 7, 100.0) == plain.key(10, 7) == 98
    for unaged in (foresight(order=lambda instance: -instance.outputs), foresight(patience=60)):
        assert unaged.key(10, 7, 100.0) == unaged.key(10, 7) in (-7, 98)
    assert foresight().key(10, 7, 80.0) == pytest.approx(log(98) + 1)  # a scale of 80 s


def test_a_subclass_has_settings_of_its_own_which_the_server_may_change():
    scheduler = made(
        "PlannedScheduler", settings=Settings(order="mc-sf", aging=None), extra={"factor": 2}
    )
    request = asked(expected_output=30)
    scheduler.add_request(request)
    assert request.priority == 30
    assert scheduler.foresight.outlook(request, 0, 1000) == Outlook(30, 60, -1)
    assert scheduler.settings.policy == "priority"


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("OrderedScheduler", {"ordr": "area"}, "no setting 'ordr': did you mean 'order'"),
        ("OrderedScheduler", {"order": "aera"}, "unknown policy 'aera': did you mean 'area'"),
        ("OrderedScheduler", {"order": "sorted-f"}, "'sorted-f' is no plain order"),
        ("OrderedScheduler", {"order": "area+window"}, r"'area\+window' is no plain order"),
        ("OrderedScheduler", {"order": "work"}, "set clock to a name or a JSON file"),
        ("PlannedScheduler", {"factor": -1}, "factor is -1, but must be a finite number above 0"),
        ("PlannedScheduler", {"factor": "2"}, "factor is '2', but must be a finite number"),
        ("OrderedScheduler", {"aging": 0}, "aging is 0, but must be a finite number above 0"),
        ("PlannedScheduler", {"room": 1.5}, "room is 1.5, but must be a share above 0 and at most"),
        ("PlannedScheduler", {"patience": 0}, "patience is 0, but must be a number above 0"),
        ("PlannedScheduler", {"log_error": inf}, "log_error is inf, but must be a finite"),
        ("PlannedScheduler", {"deviations": -1}, "deviations is -1, but must be a finite"),
    ],
)
def test_settings_that_are_wrong_are_refused_in_one_sentence(name, given, words):
    with pytest.raises(OptschedError, match=words) as error:
        made(name, extra=given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_for_the_other_mode_is_refused(name):
    wrong = replace(CASE, async_scheduling="Async" not in name)
    with pytest.raises(OptschedError, match=r"start the server with --.*async-scheduling, or use"):
        getattr(inside, name)(*fake_vllm.config(wrong))


def test_no_vllm_and_another_interface_are_said_in_one_sentence(vllm, monkeypatch):
    class Other:
        schedule = add_request = _free_request = None

    vllm(scheduler=Other, version="0.32.0")
    with pytest.raises(
        OptschedError, match=r"vLLM 0.32.0 has .* without _preempt_request; .*0.33.0 or 0.32.0"
    ):
        inside.PlannedScheduler  # noqa: B018
    vllm(version="0.30.0")
    with pytest.raises(
        OptschedError,
        match=r"tested with vLLM 0.33.0 or 0.32.0, but this is 0.30.0.*without --scheduler-cls",
    ):
        inside.PlannedScheduler  # noqa: B018
    vllm(version="0.33.0+cu129")
    assert inside.PlannedScheduler.__name__ == "PlannedScheduler"
    monkeypatch.delitem(vars(inside), "PlannedScheduler")
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", None)
    with pytest.raises(OptschedError, match=r"without vllm.v1.core.sched.scheduler.Scheduler"):
        inside.PlannedScheduler  # noqa: B018
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(OptschedError, match=r"needs vLLM, which cannot be imported .* 0.33.0"):
        inside.PlannedScheduler  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'Planed'"):
        inside.Planed  # noqa: B018
