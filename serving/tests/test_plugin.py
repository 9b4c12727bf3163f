"""Orders and plans inside vLLM, on a scheduler with its interface and, where it is, on itself."""

import functools
import logging
import sys
from dataclasses import asdict, replace
from math import ceil, inf, log
from types import SimpleNamespace

import fake_vllm
import literal_vllm
import numpy as np
import pytest
from effort import examples
from fake_vllm import CASE, made
from hypothesis import given
from hypothesis import strategies as st
from literal_aging import with_aging
from vllm_runs import CLOCK, policy_of, same

import optsched
import optsched_serving.plugin as inside
from optsched import Beliefs, Instance, OptschedError, PriorityPolicy
from optsched.policies import get_policy
from optsched_serving.learning import OutputLearner, Seen
from optsched_serving.plugin import Settings
from optsched_serving.plugin import scheduler as module
from optsched_serving.plugin.plan import AdmissionPlan, Foresight, Outlook, Row

pytestmark = pytest.mark.usefixtures("vllm")


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


def literal_key(order):
    """Return the key of a request in an order, as the literal scheduler asks for it."""
    return order and (lambda prompt, left, _: KEYS[order](prompt, left))


AGES = [None, 0.05, 80.0, "load"]


@examples(150)
@given(cases(), st.sampled_from([None, *KEYS]), st.booleans(), st.sampled_from(AGES))
def test_batches_are_those_of_the_literal_scheduler_with_foresight(drawn, order, plan, aging):
    case, requests, forecasts = drawn
    by_policy = replace(case, policy="fcfs" if order is None else "priority")

    def request(index, kind, **more):
        prompt, output, arrival = requests[index]
        return kind(index, prompt, output, arrival, **more)

    known = literal_vllm.Foresight(forecasts, forecasts, literal_key(order), plan)
    scheduler = literal_vllm.with_foresight(known)
    twin = literal_vllm.run(
        [request(i, literal_vllm.Request) for i in range(len(requests))],
        by_policy,
        CLOCK,
        scheduler=with_aging(scheduler, aging) if order and aging else scheduler,
    )
    name = f"{'Planned' if plan else 'Ordered'}{'Async' if case.async_scheduling else ''}Scheduler"
    given = {"order": order, "aging": aging, "trusted": True}
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


LEARNING = (
    *(":area+learned", ":mc-sf+plan+learned", ":area,0.2+plan+learned", "+fair"),
    *(":area,load+learned", ":mc-sf,load+plan+learned"),
    *(":edf+learned", ":edf+plan+learned", ":least-slack+learned"),
    *(":area+gittins+learned", ":work,load+gittins+plan+learned"),
)
WEIGHTS = {"1": 3.0, "2": 0.7}  # of clients; that of the others is 1
STEP = 1 / 128  # seconds; sums of it are exact
OBJECTIVES = {1: 0.25, 2: 0.5}  # of clients, in seconds; the requests of others name their own


def objective_of(index, client):
    """Return within how many seconds a request is due."""
    return OBJECTIVES.get(client, (7 * index % 5 + 1) / 8)


client_requests = st.tuples(
    *(st.integers(1, 20), st.integers(1, 12), st.integers(0, 60), st.integers(0, 2)),
    *(st.sampled_from([None, 1, 2]), st.one_of(st.none(), st.integers(1, 30))),
)


@examples(150)
@given(
    st.lists(client_requests, min_size=1, max_size=14),
    st.sampled_from(LEARNING),
    st.integers(0, 8),
    *(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_batches_that_go_by_what_is_learned_are_those_of_simulate(
    rows, name, blocks, later, clients, claims, weighted
):
    arrivals = np.sort([ticks for _, _, ticks, *_ in rows]).tolist()
    case = literal_vllm.Settings(
        num_gpu_blocks=12 + blocks, block_size=3, max_num_seqs=4, max_num_batched_tokens=24
    )
    case = replace(case, async_scheduling=later)
    memory = (11 + blocks) * 3
    order, aging = name.partition("+")[0][1:].partition(",")[::2]
    aging = float(aging) if aging[:1].isdigit() else aging or None
    extra = {"order": order or None, "aging": aging, "clock": CLOCK}
    extra |= {"objective": {str(client): seconds for client, seconds in OBJECTIVES.items()}}
    extra["gittins"] = "gittins" in name
    extra["fair"] = name == "+fair" and (not weighted or WEIGHTS)
    kind = f"{'Planned' if 'plan' in name else 'Ordered'}{'Async' if later else ''}Scheduler"
    requests = []
    for index, (prompt, output, _, priority, client, claim) in enumerate(rows):
        said = {"client": client or 0} if clients else {}
        said |= {"expected_output": claim or 1} if claims else {}
        if not clients or client not in OBJECTIVES:
            said |= {"objective": objective_of(index, client if clients else None)}
        arrival = arrivals[index] * STEP
        requests.append(fake_vllm.Request(index, prompt, output, arrival, extra_args=said))
        requests[-1].priority = priority
    ours = literal_vllm.run(
        requests,
        replace(case),
        CLOCK,
        scheduler=lambda case: getattr(inside, kind)(*fake_vllm.config(case, extra, memory)),
    )
    prompts, outputs, _, priorities, _, _ = zip(*rows, strict=True)
    instance = Instance(
        prompts,
        outputs,
        memory,
        arrivals,
        seconds_per_step=STEP,
        priorities=priorities,
        deadlines=[
            ticks + objective_of(index, row[4] if clients else None) / STEP
            for index, (ticks, row) in enumerate(zip(arrivals, rows, strict=True))
        ],
        clients=[row[4] or 0 for row in rows] if clients else None,
        output_estimates=[row[5] or 1 for row in rows] if claims else None,
    )
    if weighted and clients and name == "+fair":
        weights = [WEIGHTS.get(str(client), 1.0) for client in instance.clients.tolist()]
        instance = instance.replace(weights=weights)
    run = optsched.run(instance, policy_of(asdict(case), f"vllm{name}"), clock=CLOCK)
    assert same(run, range(len(rows)), ours)


def foresight(usable=100, sizes=(4,), longest=200, **given):
    return Foresight(Settings(**given), usable, sizes, longest)


def asked(prompt=10, index=0, **extra):
    return fake_vllm.Request(index, prompt, 5, 0.0, extra_args=extra)


def look(seen, request, made=0, limit=1000):
    """Return what is expected of a request that has arrived just now."""
    return seen.outlook(request, made, seen.expect(request, limit))


def ended(seen, request, output, *, complete=True):
    """Let a request come and go."""
    request.made = output
    seen.ended(request, seen.expect(request, 1000), 1, complete=complete)


def test_a_trusted_forecast_is_cut_to_the_limit():
    seen = foresight(factor=1.5, trusted=True)
    assert look(seen, asked(expected_output=20)) == Outlook(20, 30)
    assert look(seen, asked(expected_output=20), limit=15) == Outlook(15, 15)
    assert look(seen, asked(expected_output="20")).output == 20  # HTTP may send text


def test_a_request_that_outlives_what_was_expected_counts_as_one_token_more():
    scheduler = made("PlannedScheduler", extra={"trusted": True, "order": "mc-sf", "aging": None})
    request = asked(expected_output=20)
    scheduler.add_request(request)
    for tokens, left in ((0, 20), (5, 15), (20, 1), (300, 1)):
        request.made = tokens
        assert scheduler.row_of(request).left == left
        scheduler._rank(request)  # noqa: SLF001
        assert request.priority == left


@pytest.mark.parametrize("wrong", [0, -3, "many", float("nan"), inf, None, [5]])
def test_what_is_no_forecast_is_left_out(wrong):
    seen = foresight()
    ended(seen, asked(), 40)
    assert look(seen, asked(expected_output=wrong)) == look(seen, asked())


def test_outputs_are_learned_by_client_prompt_priority_and_turn():
    seen, learner = foresight(), OutputLearner()
    rng = np.random.default_rng(1)
    for number in range(300):
        client, turn = rng.choice(["summaries", "stories"]), int(rng.integers(0, 3))
        prompt, priority = int(rng.integers(1, 400)), int(rng.integers(0, 2))
        claim = [None, 30.0, 700.0][number % 3]
        request = asked(prompt, client=client, turn=turn, expected_output=claim)
        expected = learner.expect(Seen(prompt, 1000, client, priority, turn, claim))
        assert seen.expect(request, 1000, priority) == expected
        output = 10 if client == "summaries" else 500
        request.made = output
        seen.ended(request, expected, expected.mean, complete=True)
        learner.learn(output, expected)
    assert look(seen, asked(client="summaries")).output < 20
    assert look(seen, asked(client="stories")).output > 480
    for odd in ({"client": [5]}, {"turn": "third"}, {"turn": -2}):
        assert look(seen, asked(**odd)) == look(seen, asked())


def test_a_claim_moves_little_before_it_was_checked():
    seen = foresight()
    rng = np.random.default_rng(2)
    for output in np.clip(rng.lognormal(4.5, 0.8, 500), 1, 1000).astype(int).tolist():
        ended(seen, asked(), output)
    plain, claim = look(seen, asked()), asked(client="mine", expected_output=1)
    assert look(seen, claim).output > 0.4 * plain.output
    assert look(foresight(trusted=True), claim).output == 1
    for _ in range(60):
        ended(seen, asked(client="honest", expected_output=5), 5)
        ended(seen, claim, 300)
    assert look(seen, asked(client="honest", expected_output=5)).output < 8
    assert look(seen, claim).output > 150


def test_a_completed_request_is_learnt_and_an_aborted_one_is_not():
    scheduler = made("OrderedScheduler")
    for index, (status, output) in enumerate([("FINISHED_ABORTED", 300), ("FINISHED_STOPPED", 9)]):
        request = asked(index=index)
        scheduler.add_request(request)
        request.made, request.status.name = output, status
        scheduler._free_request(request)  # noqa: SLF001
    once = foresight()
    request = asked()
    request.made = 9
    once.ended(request, once.expect(request, scheduler.limit_of(request)), 1, complete=True)
    assert look(scheduler.foresight, asked()) == look(once, asked())


def test_an_aborted_request_counts_in_turns_as_what_it_made():
    seen = foresight(fair=True)
    mine, other = (seen.expect(asked(client=client), 1000) for client in ("mine", "other"))
    look = Outlook(100, 100)
    assert [seen.arrives(asked(), each, look) for each in (mine, mine, other)] == [0, 210, 0]
    seen.ended(asked(), mine, 100, complete=False)
    assert seen.arrives(asked(), mine, look) == 220  # 10 tokens of its prompt, and 210
    assert foresight(aging=None).arrives(asked(), mine, look) == 0


def test_beliefs_give_the_mean_of_what_is_left():
    seen = foresight(log_error=0.5)
    belief = Beliefs.around(np.arange(1, 201), 0.5, 200)
    for forecast, made_so_far in ((20, 0), (20, 25), (150, 150), (3, 190)):
        found = look(seen, asked(expected_output=forecast), made_so_far, 10_000)
        chances = belief.chances[belief.rows[forecast - 1]]
        outputs = np.arange(1, 201)
        later = outputs > made_so_far
        mean = (chances * outputs)[later].sum() / chances[later].sum()
        assert found.output == pytest.approx(mean, abs=1)
        assert found.row >= 0


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
        found = look(seen, asked(p, expected_output=forecast), m, limit)
        rows.append(Row(p + m, m, limit, max(found.planned - m, 1), found.row))
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
        assert not AdmissionPlan(seen, rows[1:], lag).admits(rows[0])


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
    plan = AdmissionPlan(
        seen, rows, lag, lambda: arrays, len(set().union(*held)) < sum(map(len, held))
    )
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
    short, long = (look(seen, asked(prompt=p), limit=10_000) for p in (4, 150))
    assert 9 <= short.output <= 15
    assert 110 <= long.output <= 125
    assert look(seen, asked(prompt=10**6), limit=10_000) == long
    believing = foresight(history=past, trusted=True)
    assert look(believing, asked(expected_output=7)) == Outlook(7, 7)
    both = foresight(history=past, log_error=0.2)
    assert look(both, asked(prompt=4)).output == short.output
    assert look(both, asked(expected_output=7)).row >= 0


def test_whoever_waited_beyond_its_patience_comes_first_in_order_of_arrival():
    scheduler = made("OrderedScheduler", extra={"patience": 10}, now=lambda self: 15.0)
    arrivals = [0.0, 2.0, 7.0, 8.0]
    for index, (arrival, output) in enumerate(zip(arrivals, (90, 50, 9, 5), strict=True)):
        request = fake_vllm.Request(index, 10, 5, arrival, extra_args={"expected_output": output})
        scheduler.add_request(request)
    assert [request.index for request in scheduler.waiting] == [3, 2, 1, 0]
    batch = scheduler.schedule()
    assert [request.index for request, *_ in batch.parts] == [0, 1, 3, 2]


def test_a_plan_stands_aside_where_it_cannot_hold():
    class SlidingWindowSpec(fake_vllm.FullAttentionSpec):
        pass

    given = {"spec": SlidingWindowSpec}
    settings = replace(CASE, async_scheduling=True)
    aside = inside.PlannedAsyncScheduler(*fake_vllm.config(settings, **given))
    assert aside.off == {"plan": "layers of the kind SlidingWindowSpec do not keep all tokens"}
    assert made("PlannedAsyncScheduler").off == {}
    assert made("OrderedScheduler").off == {"plan": "the class only orders"}
    for path, value, why in (
        ("speculative_config", object(), "with speculative decoding"),
        ("kv_transfer_config", object(), "a KV connector moves blocks"),
        ("parallel_config.pipeline_parallel_size", 2, "stages of a pipeline"),
        ("parallel_config.decode_context_parallel_size", 2, "blocks are spread over devices"),
        ("model_config.is_encoder_decoder", True, "what an encoder makes"),
    ):
        scheduler = inside.PlannedAsyncScheduler(*limited(settings, path, value))
        assert scheduler.off["plan"].startswith(why)


def limited(settings, path, value):
    """Return configurations of which a part has a value."""
    config, cache = fake_vllm.config(settings)
    config.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
    *owner, name = path.split(".")
    setattr(getattr(config, owner[0]) if owner else config, name, value)
    return config, cache


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("diffusion_config", object(), "a diffusion model needs a scheduler of vLLM's own; start"),
        ("model_config.runner_type", "pooling", "a pooling model makes no tokens to order or plan"),
    ],
)
def test_models_that_cannot_be_served_are_refused(path, value, words):
    with pytest.raises(OptschedError, match=words):
        inside.PlannedScheduler(*limited(CASE, path, value))


@pytest.mark.parametrize("later", [False, True])
def test_one_class_serves_both_modes(later):
    class Mine(inside.PlannedScheduler):
        settings = Settings(order="mc-sf")

    for kind in (Mine, inside.OrderedScheduler, inside.OrderedAsyncScheduler):
        scheduler = kind(*fake_vllm.config(replace(CASE, async_scheduling=later)))
        assert isinstance(scheduler, kind)
        assert isinstance(scheduler, fake_vllm.AsyncScheduler) == later == scheduler.lag
    assert inside.PlannedAsyncScheduler is inside.PlannedScheduler


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
        request.made = index % 5  # none, where it ends at once
        scheduler._free_request(request)  # noqa: SLF001
    watch = scheduler.watch
    kept = (scheduler._seen, scheduler._by_arrival, watch._waiting)  # noqa: SLF001
    assert not any(kept)
    scheduler = made("PlannedScheduler")
    for index in range(300):
        request = asked(index=index, expected_output=9)
        scheduler.add_request(request)
        scheduler._free_request(request)  # noqa: SLF001
    aging = scheduler.foresight.aging
    kept = (scheduler._seen, aging._works, aging._line)  # noqa: SLF001
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
    fresh_metrics = functools.cache(module._metrics.__wrapped__)  # noqa: SLF001
    monkeypatch.setattr(module, "_metrics", fresh_metrics)
    caplog.set_level(logging.INFO, logger="vllm.optsched")
    requests = [
        fake_vllm.Request(index, 8, output, arrival, extra_args={"expected_output": output + 5})
        for index, (output, arrival) in enumerate([(20, 0.0), (20, 0.0), (2, 0.05)])
    ]
    now = iter(range(0, 100_000, 100))
    attributes = {"now": lambda self: next(now), "log_stats": True}
    kind = type("Mine", (inside.PlannedScheduler,), attributes)
    case = replace(CASE, num_gpu_blocks=10)
    given = {"order": "mc-sf", "aging": 0.01, "trusted": True}
    make = lambda case: kind(*fake_vllm.config(case, given))  # noqa: E731
    literal_vllm.run(requests, case, CLOCK, scheduler=make).engine.schedule()
    assert metrics["optsched:admitted"].value == 3
    assert metrics["optsched:refused"].value > 0
    assert metrics["optsched:promoted"].value == 1  # before the short one that came later
    assert metrics["optsched:asked"].value == 24
    assert metrics["optsched:waiting"].value == 0
    assert metrics["optsched:forecast_error"].value == pytest.approx(15 / 42)
    assert "3 admissions, 20 refused by the plan, 1 promoted by age" in caplog.messages[-1]


def test_an_empty_queue_is_told_at_once_and_others_each_second():
    told = []
    watched = module.Watch()
    watched._metrics = dict.fromkeys(  # noqa: SLF001
        (*watched.counts, "forecast_error"), SimpleNamespace(inc=id, set=id)
    ) | {"waiting": SimpleNamespace(set=told.append)}
    for now, waiting in ((1.0, 3), (1.5, 2), (2.1, 5), (2.2, 0), (2.3, 0), (2.4, 1), (9.0, 1)):
        watched.tell(now, waiting, 1)
    assert told == [3, 5, 0, 1]


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


def test_a_request_is_due_by_its_own_objective_or_that_of_its_client_or_comes_last():
    def due(usual=None, **extra):
        request = asked(**extra)
        request.arrival = 100.0
        scheduler = made("OrderedScheduler", extra={"order": "edf", "objective": usual})
        scheduler.add_request(request)
        return request.priority

    assert due(30) == 130
    assert due({"a": 5}, client="a") == 105
    assert due({"a": 5}, client="a", objective=1) == 101
    assert [due(30, client="a"), due({"a": 5}, client="b"), due()] == [130, inf, inf]
    slack = foresight(order="least-slack", clock=CLOCK)
    alone = optsched.run(Instance([10], [7], 100), "fcfs", clock=CLOCK)
    assert -slack.key(10, 7) == pytest.approx(alone.latencies[0])
    assert foresight(order="edf").key(10, 7) == 0


@pytest.mark.parametrize(
    ("said", "seconds"), [(2.5, 2.5), ("4", 4), (0, 0), (-1, 30), ("soon", 30), (inf, 30)]
)
def test_an_objective_that_is_no_time_is_left_out(said, seconds):
    request = asked(objective=said)
    assert foresight(order="edf", objective=30.0).due(request, None) == seconds


def test_orders_of_ours_age_with_the_arrival_and_others_do_not():
    def key(seen):
        request = asked(expected_output=7)
        request.arrival = 100.0
        expected = seen.expect(request, 1000)
        later = seen.arrives(request, expected, seen.outlook(request, 0, expected))
        return seen.aging.key(seen.key(10, 7), later)

    aged = foresight(order="area", aging=40.0, trusted=True)
    assert aged.key(10, 7) == 98
    assert key(aged) == log(98) + 2.5
    for unaged in (foresight(order=lambda instance: -instance.outputs), foresight(patience=60)):
        assert key(unaged) == unaged.key(10, 7) in (-7, 98)
    assert key(foresight(trusted=True)) == log(98 / (98 + 0.3 * 98)) + 100 / 0.01  # by the load


@pytest.mark.parametrize("later", [False, True])
@examples(40)
@given(drawn=cases())
def test_a_dry_run_forms_batches_of_vllm_and_counts_what_would_have_changed(drawn, later):
    case, requests, _ = drawn
    case = replace(case, async_scheduling=later)

    def batches(scheduler):
        asked = [
            fake_vllm.Request(index, *request, extra_args={"expected_output": request[1]})
            for index, request in enumerate(requests)
        ]
        return literal_vllm.run(asked, replace(case), CLOCK, scheduler=scheduler)

    def dry(case):
        extra = {"order": "mc-sf", "aging": None, "trusted": True, "dry_run": True}
        return inside.PlannedScheduler(*fake_vllm.config(case, extra))

    plain, ours = batches(lambda case: fake_vllm.Scheduler(*fake_vllm.config(case))), batches(dry)
    assert [batch.row for batch in ours.batches] == [batch.row for batch in plain.batches]
    counts = ours.engine.watch.counts
    most = len(requests) + sum(r.preempted for r in ours.requests)
    # Asynchronously the last token of a preempted request may be on its way: it ends as it waits.
    assert (len(requests) if later else most) <= counts["admitted"] <= most
    assert counts["promoted"] <= counts["admitted"]


def test_a_dry_run_counts_what_the_order_and_the_plan_would_have_changed():
    extra = {"order": "mc-sf", "aging": None, "trusted": True, "dry_run": True}
    case = replace(CASE, num_gpu_blocks=9, max_num_seqs=2)  # 8 blocks of 4 tokens
    asked = [
        fake_vllm.Request(index, 4, output, 0.0, extra_args={"expected_output": output})
        for index, output in enumerate([28, 20, 1])
    ]
    make = lambda case: inside.PlannedScheduler(*fake_vllm.config(case, extra))  # noqa: E731
    watch = literal_vllm.run(asked, case, CLOCK, scheduler=make).engine.watch
    assert watch.counts["refused"] > 0  # 7 and 6 blocks, of 8
    assert watch.counts["promoted"] > 0  # the long ones, before that of one token


def test_a_subclass_has_settings_of_its_own_which_the_server_may_change():
    scheduler = made(
        "PlannedScheduler",
        settings=Settings(order="mc-sf", aging=None, trusted=True),
        extra={"factor": 2},
    )
    request = asked(expected_output=30)
    scheduler.add_request(request)
    assert request.priority == 30
    assert look(scheduler.foresight, request) == Outlook(30, 60)
    assert scheduler.settings.policy == "priority"
