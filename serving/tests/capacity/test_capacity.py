"""At most: what was simulated meets the objectives, in Python and on the command line."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from twins import twin_of

import optsched
from optsched import Instance, OptschedError, Slo, capacity, family, read_certificate, run, verify
from optsched.clock import LinearClock
from optsched.policies import get_policy
from optsched.problem.forecasts import rough_forecasts
from optsched_serving.capacity.bounds import Attempt
from optsched_serving.capacity.capacity import ON_CLOCK, SHIPPED, fewest
from optsched_serving.plugin import Settings

TRACE = optsched.family("uniform", n=60, seed=2, load=2.5)
CLOCK = LinearClock("fast", 0.3, 0.002, 0.004, 0.0002)


def attained(instance, slo, latencies):
    """Return whether enough latencies are within a limit, counted one by one."""
    return sum(latency > slo.limits["latency"] for latency in latencies) <= slo.misses(
        len(instance)
    )


def test_literal_twins_confirm_the_answer_and_that_one_less_falls_short():
    slo = Slo("latency:p90<=70steps")
    found = capacity(TRACE, slo, ["fcfs", "area"], ["round-robin", "least-tokens"])
    assert 1 < found.at_least <= found.at_most
    for plan in found.plans:
        for workers, met in ((plan.workers, True), (plan.workers - 1, False)):
            routed = run(TRACE, plan.policy, workers=workers, router=plan.router)
            latencies = np.zeros(len(TRACE))
            for worker in range(workers):
                some = routed.requests_on(worker)
                if len(some):
                    own = TRACE.take(some)
                    twin = twin_of(own, plan.policy)
                    assert twin is not None
                    assert not twin.differs(routed.on(worker))
                    latencies[some] = routed.on(worker).latencies
            assert attained(TRACE, slo, latencies.tolist()) == met


@pytest.mark.slow
def test_what_the_plugin_ships_is_tried_by_default(optsched_json):
    shipped, settings = get_policy(SHIPPED), Settings()
    assert (shipped.order, shipped.aging) == (settings.policy(), settings.aging)
    assert (shipped.plan, shipped.learned, shipped.fair) == (True, True, settings.fair)
    timed = TRACE.replace(seconds_per_step=1.0)
    found = capacity(timed, "latency:p90<=700s", clock=CLOCK)
    knows = {plan.policy: plan.knows for plan in found.plans}
    assert knows == dict.fromkeys(("vllm", SHIPPED), "nothing") | dict.fromkeys(
        ("vllm:work+plan", "work"), "outputs"
    )
    words = ("family:uniform,n=30,rate=3", "--slo", "latency:p90<=9s", "--max-num-seqs", 9)
    found = optsched_json("capacity", *words, "--clock", "llama-3.1-8b-rtx4090")
    assert [plan["policy"] for plan in found["plans"]] == list(ON_CLOCK)


def test_more_workers_need_not_be_better_and_the_answer_says_so():
    enough = {3: True, 4: False, 5: True, 6: True, 7: True}

    def tried(count):
        return Attempt(int(enough.get(count, count > 7)), 1, 0.0)

    for guess in range(1, 12):
        attempts = {}
        fewest(tried, 1, 20, guess, attempts)
        number = min(count for count, each in attempts.items() if each.met)
        assert number in (3, 5)
        assert attempts[number].met
        assert number == 3 or not attempts[4].met
        assert {number + 1, number + 2} <= attempts.keys()
    none = {}
    fewest(lambda _: Attempt(0, 1, 0.0), 1, 9, 3, none)
    assert not any(each.met for each in none.values())


def test_no_number_of_workers_serves_a_request_that_is_late_alone():
    found = capacity(Instance([5, 5], [4, 9], memory=20), "latency:max<=5steps")
    assert (found.at_least, found.at_most, found.impossible) == (None, None, (1,))
    assert "1 request is late even alone on an idle worker: 1." in found.answer
    half = capacity(Instance([5, 5], [4, 9], memory=20), "latency:p50<=5steps")
    assert (half.at_least, half.impossible) == (1, (1,))


def test_several_instances_must_all_meet_the_objectives():
    several = [optsched.family("uniform", n=40, seed=seed, load=2) for seed in range(3)]
    together = capacity(several, "latency:p90<=70steps", "area")
    apart = [capacity(each, "latency:p90<=70steps", "area").at_most for each in several]
    assert together.at_most == max(apart)
    assert together.plans[0].attempts[together.at_most].held == 3


def test_the_proof_of_several_instances_is_about_the_instance_that_is_named():
    several = [
        optsched.family("uniform", n=40, seed=seed, load=load) for seed, load in ((0, 1), (1, 6))
    ]
    found = capacity(several, "latency:p90<=70steps", at_least_only=True)
    assert found.instance == several[1]
    assert found.at_least - 1 < optsched.verify(found.certificate, several[1])
    long = Instance([5], [4], memory=20, name="long")
    hopeless = capacity([Instance([5], [1], memory=20), long], "latency:max<=2steps", "fcfs")
    assert (hopeless.at_least, hopeless.instance.name) == (None, "long")


@pytest.mark.parametrize("clock", [None, CLOCK, lambda _: 0.5])
@pytest.mark.parametrize(
    "form", ["latency:p90<={}{}", "ttft:max<={}{}", "latency:mean<={}{}", "within:ttft<={}{}:80%"]
)
def test_where_requests_are_late_alone_the_least_limit_is_the_least_that_works(clock, form):
    unit, tiny = ("steps", 0.5) if clock is None else ("s", 0.01)
    trace = optsched.family("uniform", n=30, seed=4, load=1).replace(seconds_per_step=0.5)
    short = capacity(trace, form.format(tiny, unit), ["area", "fcfs"], clock=clock)
    for plan in short.plans:
        entry = plan.to_dict(short.slos)
        assert (plan.workers, plan.attempts, entry["met"]) == (None, {}, False)
        assert 0 <= entry["attained"] < 1
        (least,) = entry["least_objectives"]
        assert Slo(least).limits == {next(iter(short.slos[0].limits)): entry["least_limit"]}
        assert f"the least limit that it meets so is {least}" in " ".join(short.answer)
        apart = trace.replace(arrivals=np.arange(30) * 10_000)  # each is alone
        enough = capacity(apart, least, plan.policy, workers=1, clock=clock)
        assert enough.at_most == 1
        less = form.format(0.999 * entry["least_limit"], unit)
        assert capacity(apart, less, plan.policy, workers=1, clock=clock).at_most is None


def test_the_headline_is_of_a_plan_that_can_be_deployed():
    trace = optsched.family("chat-and-summaries", n=60, rate=4, seed=1, seconds_per_step=1e-6)
    slo, clock = "latency:mean<=8s", "llama-2-70b-2xa100"
    found = capacity(trace, slo, ["work", "vllm"], clock=clock, loads=[2], cost=2.5)
    knows = {plan.policy: plan.knows for plan in found.plans}
    assert knows == {"work": "outputs", "vllm": "nothing"}
    needs = {plan.policy: plan.workers for plan in found.plans}
    first, second, *_ = found.answer
    costs = {policy: f"{2.5 * count:g} per hour" for policy, count in needs.items()}
    deployed = f"needs the fewest workers for {slo}: {needs['vllm']} ({costs['vllm']})."
    assert first == f"Of the plans that can be deployed, least-tokens with vllm {deployed}"
    told = f"least-tokens with work needs {needs['work']} ({costs['work']})."
    assert second == f"Told all outputs, {told}"
    assert [plan["knows"] for plan in found.to_dict()["plans"]] == ["outputs", "nothing"]
    assert " outputs " in str(found)
    twice = {plan.policy: plan.workers for plan in found.loads[2].plans}
    fewer = f", at most {twice['work']} told all outputs" * (twice["work"] != twice["vllm"])
    assert found.answer[-1].endswith(f", at most {twice['vllm']}{fewer}.")
    (only,) = (alone := capacity(trace, slo, "work", clock=clock)).plans
    said = f"Every plan that meets {slo} is told all outputs, which no server is."
    assert alone.answer[0] == said
    assert alone.best == (None, only)
    router = capacity(trace, slo, "vllm", ["least-work"], clock=clock)
    assert [plan.knows for plan in router.plans] == ["outputs"]


def test_a_plan_that_is_told_outputs_stands_beside_itself_with_rough_forecasts():
    trace = optsched.family("chat-and-summaries", n=150, rate=4, seed=1, seconds_per_step=1e-6)
    clock, slo = "llama-2-70b-2xa100", "ttft:p90<=3s"
    found = capacity(trace, slo, ["vllm", "vllm:work+plan"], clock=clock)
    _, told = found.best
    said = found.to_dict()["with_rough_forecasts"]
    assert said["policy"] == told.policy == "vllm:work+plan"
    guessed = rough_forecasts(trace)
    alone = capacity(
        guessed, slo, "vllm:work+plan", workers=told.workers, clock=clock, intervals="column"
    )
    (attempt,) = alone.plans[0].attempts.values()
    assert (said["met"], said["attained"]) == (attempt.met, attempt.attained)
    end = "so many are enough, too." if attempt.met else f"with {told.workers}."
    assert "; with rough forecasts (log-error 0.5) " in found.answer[1]
    assert found.answer[1].endswith(end)
    short = replace(found, with_rough_forecasts=said | {"met": False, "attained": 0.8125})
    assert short.answer[1].endswith(
        f"with rough forecasts (log-error 0.5) it attains 81.25% with {told.workers}."
    )
    for policies in (["vllm", "work"], ["vllm"]):
        assert capacity(trace, slo, policies, clock=clock).with_rough_forecasts is None


def test_too_few_workers_say_what_they_attain_themselves():
    (plan,) = (found := capacity(TRACE, "latency:p90<=70steps", "area", workers=2)).plans
    entry = plan.to_dict(found.slos)
    assert (plan.workers, entry["attained"]) == (None, plan.attempts[2].attained)
    assert entry["attained"] < 0.9 < plan.alone.attained
    least = entry["least_objectives"]
    assert capacity(TRACE, least, "area", workers=2).at_most == 2
    assert "does not meet it with 2 workers" in found.answer[-1]


def test_several_limits_are_raised_together_to_what_a_plan_reaches():
    slos = ["within:ttft<=1steps&tpot<=0.5steps:90%", "latency:p90<=1e6steps"]
    (plan,) = (found := capacity(TRACE, slos, "area")).plans
    assert plan.workers is None
    least = plan.least(found.slos)
    assert least[0].limits["ttft"] == pytest.approx(2 * least[0].limits["tpot"])
    assert plan.to_dict(found.slos)["least_limit"] == least[0].limits["ttft"]
    assert capacity(TRACE, least[0], "area").at_most is not None


def test_limits_in_steps_are_compared_exactly():
    one = Instance([5] * 4, [4] * 4, memory=100)
    assert capacity(one, "latency:max<=4steps", "area").at_most == 1
    for less in ("latency:max<=3.9999999999steps", "latency:mean<=3.9999999999steps"):
        assert capacity(one, less, "area").at_least is None
    late = Instance([1] * 2, [1, 1], memory=2, arrivals=[0, 0])
    assert capacity(late, "latency:mean<=1.4999999999steps", "area", workers=1).at_most is None
    assert capacity(late, "latency:mean<=1.5steps", "area", workers=1).at_most == 1


def test_an_engine_that_learns_has_a_learner_on_each_worker():
    rng = np.random.default_rng(1)
    trace = optsched.family("chat-and-summaries", n=120, rate=4, seed=1, seconds_per_step=1e-6)
    trace = trace.replace(clients=rng.integers(0, 3, len(trace)))
    clock = "llama-2-70b-2xa100"
    for policy in ("vllm:area+plan+learned", "vllm+fair"):
        found = capacity(trace, "ttft:p95<=2s", policy, clock=clock)
        assert found.at_most is not None
        routed = run(trace, policy, clock=clock, workers=found.at_most, router="least-tokens")
        for worker in range(found.at_most):
            own = run(trace.take(routed.requests_on(worker)), policy, clock=clock)
            assert np.array_equal(own.completions, routed.on(worker).completions)


def test_nothing_is_proven_on_a_clock_that_is_a_function():
    requests = Instance([5] * 8, [4] * 8, memory=18, seconds_per_step=0.1)
    found = capacity(requests, "latency:max<=3", "area", clock=lambda _: 0.5)
    assert (found.impossible, found.certificate, found.at_least) == ((), None, 1)
    assert (found.at_most, found.unit, found.estimate) == (4, "s", None)
    assert "No bound is known on a clock that is a function" in " ".join(found.answer)


@pytest.mark.parametrize("clock", [None, "affine:0.2,0.001"])
def test_the_estimate_is_the_stability_condition_counted_batch_by_batch(clock):
    trace = TRACE.replace(seconds_per_step=0.5)
    found = capacity(
        trace,
        f"latency:max<=1e9{'steps' if clock is None else 's'}",
        at_least_only=True,
        clock=clock,
    )
    held = sum(
        sum(prompt + made for made in range(1, output + 1))
        for prompt, output in zip(trace.prompts.tolist(), trace.outputs.tolist(), strict=True)
    )  # tokens times batches
    each, step = (1.0, 1.0) if clock is None else (0.2 + 0.001 * trace.memory, 0.5)  # full
    rate = len(trace) / (step * float(trace.arrivals[-1] - trace.arrivals[0]))
    assert found.estimate == pytest.approx(rate * each * held / len(trace) / trace.memory)
    assert "Estimate, no bound" in " ".join(found.answer)


def test_a_faster_trace_needs_more_and_what_is_wrong_is_refused():
    found = capacity(TRACE, "latency:p90<=70steps", "area", loads=[0.5, 2], cost=2.5)
    half, twice = found.loads.values()
    assert half.at_most < found.at_most < twice.at_most
    assert found.to_dict()["plans"][0]["cost_per_hour"] == 2.5 * found.at_most
    wrong = [{"workers": 0}, {"loads": [0.0]}, {"loads": [1e-300]}, {"router": "jsq"}]
    for each in (*wrong, {"max_num_seqs": 4}, {"policies": []}, {"routers": []}, {"slo": []}):
        with pytest.raises(OptschedError) as refused:
            capacity(TRACE, **{"slo": "latency:p90<=70steps", "policies": "area"} | each)
        assert "\n" not in str(refused.value)
    burst = TRACE.replace(arrivals=np.full(len(TRACE), 7))
    with pytest.raises(OptschedError, match="arrive at once, so that none can arrive faster"):
        capacity(burst, "latency:p90<=70steps", "area", loads=[2])


@pytest.mark.parametrize(
    ("slo", "clock", "said"),
    [
        ("ttft:p99<=2", None, "without a unit"),
        ("ttft:p99<=2", "unit", "without a unit"),
        ("ttft:p99<=2s", None, "in seconds, but times here are in steps"),
        ("ttft:p99<=500ms", "unit", "in seconds, but times here are in steps"),
        ("ttft:p99<=2steps", CLOCK, "in steps, but times on this clock are in seconds"),
    ],
)
def test_a_limit_in_another_unit_is_refused(slo, clock, said):
    with pytest.raises(OptschedError, match=said) as refused:
        capacity(TRACE.replace(seconds_per_step=0.5), slo, "area", clock=clock)
    assert "\n" not in str(refused.value)


def test_on_a_clock_a_bare_number_is_seconds_and_shown_as_such():
    trace = TRACE.replace(seconds_per_step=0.5)
    texts = ("latency:p90<=90", "latency:p90<=90s", "latency:p90<=90000ms")
    found = [capacity(trace, text, "area", clock=CLOCK) for text in texts]
    assert len({(each.at_least, each.at_most) for each in found}) == 1
    assert "latency:p90<=90s" in str(found[0])
    assert found[0].to_dict()["objectives"] == ["latency:p90<=90s"]


def test_ctrl_c_returns_what_is_known():
    def stop(news):
        if "area" in news:
            raise KeyboardInterrupt

    found = capacity(TRACE, "latency:p90<=70steps", ["fcfs", "area"], on_progress=stop)
    assert found.interrupted
    assert [plan.policy for plan in found.plans] == ["fcfs"]
    assert found.at_least > 1
    told = []

    def stop_later(news):
        told.append(news)
        if len(told) == 5:  # the proof, each request alone, and two numbers of workers
            raise KeyboardInterrupt

    found = capacity(TRACE, "latency:p90<=70steps", "fcfs", on_progress=stop_later)
    assert (found.interrupted, len(found.plans[0].attempts)) == (True, 2)


def test_pictures_and_tables_show_all_plans():
    found = capacity(TRACE, "latency:p90<=70steps", ["fcfs", "area"], loads=[2])
    labels = [line.get_label() for line in found.plot().get_lines()]
    assert {"fcfs", "area"} <= set(labels)
    assert len(found.plot_growth().get_lines()) == 3
    assert "least-tokens, area" in str(found)
    assert "least-tokens, area" in found._repr_html_()


def test_the_command_line_finds_proves_checks_and_runs_again(
    optsched_command, optsched_json, tmp_path
):
    trace, proof, page = tmp_path / "trace.csv", tmp_path / "proof.json", tmp_path / "page.html"
    TRACE.to_csv(trace)
    given = ["capacity", trace, "--memory", TRACE.memory, "--slo", "latency:p90<=70steps"]
    code, out, err = optsched_command(
        *given, "--policies", "area", "--certificate", proof, "--html", page, "--json", "-"
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert 1 < found["at_least"] <= found["at_most"] == found["plans"][0]["workers"]
    code, out, _ = optsched_command("check", trace, proof, "--memory", TRACE.memory)
    assert code == 0
    assert f"fewer than {found['at_least']} workers never meet latency <= 70 steps" in out
    command = shlex.split(found["plans"][0]["command"])[1:]
    again = optsched_json(*command)
    assert again["plans"][0]["attempts"] == [
        each for each in found["plans"][0]["attempts"] if each["workers"] == found["at_most"]
    ]
    assert page.read_text().count("least-tokens, area")
    assert page.read_text().count("proven too few")
    code, out, err = optsched_command(*given[:-1], "latency:max<=2steps", "--certificate", proof)
    assert code == 1
    assert "is not written, because no number of workers is enough" in err
    code, out, _ = optsched_command(*given[:-1], "latency:max<=24steps", "--policies", "fcfs")
    assert code == 1
    assert "does not meet it" in out
    for how in (["--workers", 1], ["--at-least-only"]):
        proof.unlink(missing_ok=True)
        easy = [*given[:-1], "latency:max<=1e6steps", "--policies", "area"]
        assert optsched_command(*easy, *how, "--certificate", proof)[0] == 0
        assert optsched_command("check", trace, proof, "--memory", TRACE.memory)[0] == 0


def test_a_proof_for_engines_with_prefix_caches_is_checked_by_the_command(
    optsched_command, tmp_path
):
    """It was said to be for another clock: what goes on from a cache is charged less."""
    clock, proof = "llama-2-70b-2xa100", tmp_path / "proof.json"
    words = ["family:chat,n=60,seed=1,rate=4", "--memory", 4000, "--clock", clock]
    given = ["capacity", *words, "--slo", "latency:p90<=30s", "--policies", "vllm"]
    assert optsched_command(*given, "--certificate", proof)[0] == 0
    assert read_certificate(proof).premises.cached
    assert optsched_command("check", words[0], proof, *words[1:])[0] == 0
    code, _, err = optsched_command("check", words[0], proof, *words[1:4], "llama-2-7b-a100")
    assert (code, "is for another clock than llama-2-7b-a100" in err) == (2, True)


@pytest.mark.parametrize("clock", [None, "llama-2-70b-2xa100-hinges"])
@pytest.mark.parametrize("shift", [1, 977, 1_750_000_000])
def test_later_arrivals_change_nothing_but_instants(clock, shift):
    """As those of traces in seconds since 1970."""
    base = family("chat-and-summaries", n=60, seed=3, load=0.9).replace(seconds_per_step=1.0)
    base = base.replace(arrivals=base.arrivals // (1 if clock is None else 40))
    later = base.replace(arrivals=base.arrivals + shift)
    slo = "latency:p90<=90s" if clock else "latency:p90<=4000steps"
    policy, options = ("vllm", {"clock": clock}) if clock else ("area", {})
    here, there = (capacity(each, slo, policy, loads=[2], **options) for each in (base, later))
    assert str(there).splitlines()[5:] == str(here).splitlines()[5:]
    assert verify(there.certificate, later) == verify(here.certificate, base)


def test_a_limit_of_requests_that_binds_is_named():
    """Only memory was, which was never full."""
    requests = family("chat", n=80, seed=1, rate=2, seconds_per_step=0.001)
    on = {"clock": "llama-2-70b-2xa100"}
    few, many = (replace(get_policy("vllm"), max_num_seqs=most) for most in (4, 256))
    said = "The limit of 4 requests in a batch (max_num_seqs) binds for vllm; work ran without it."
    assert said in optsched.compare(requests, [few, "work"], **on).notes
    assert not any("limit of" in note for note in optsched.compare(requests, [many], **on).notes)
    [plan] = capacity(requests, "ttft:p90<=2s", few, routers="jsq", **on).plans
    assert (plan.workers > 1, plan.binds) == (True, "the limit of requests")
