"""Policies of one's own in sweeps and regret: what tells them apart, and how they travel."""

import copy
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from effort import examples
from fresh import printed
from hypothesis import given
from hypothesis import strategies as st
from installed import ENGINE

import optsched
from optsched import POLICIES, DecisionPolicy, OptschedError, PriorityPolicy, RollingPolicy, sweep
from optsched.experiments.cells import Own, carried, portable
from optsched.policies import BatchPolicy, DynamicPolicy, get_policy
from optsched.problem.workers import get_router

MODULE = """import numpy as np
from optsched import PriorityPolicy

KEPT = 0.8

def _room(state):
    return KEPT * state.free

def careful(state):
    prompts = state.forecast.prompts[state.waiting] + 1
    return state.waiting[np.cumsum(prompts) <= _room(state)]

peak = PriorityPolicy("peak", "smallest peak first", lambda i: i.prompts + i.outputs)

def first(state):
    return state.workers[0]
"""
SMALL = {"seeds": 2, "instances": [{"family": "uniform", "n": 12, "load": 0.9}]}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's; returns a function that imports it with something replaced."""
    monkeypatch.syspath_prepend(tmp_path)
    count = 0

    def write(old="", new=""):
        nonlocal count
        count += 1  # so that no stale bytecode is found
        sys.modules.pop("of_a_user", None)
        text = MODULE.replace(old, new) if old else MODULE
        assert not old or text != MODULE
        (tmp_path / "of_a_user.py").write_text(text + "#" * count + "\n")
        return get_policy("of_a_user:careful")

    yield write
    sys.modules.pop("of_a_user", None)


def order_by(weight, offset=0):
    return lambda instance: weight * instance.outputs + offset


class Weighted:
    """A key that holds a number."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, instance):
        return self.weight * instance.outputs


def of(value):
    return portable(value).fingerprint


VALUES = st.recursive(
    st.integers(-3, 3) | st.floats(0, 1) | st.text("ab", max_size=2) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy"), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.few
@given(VALUES, VALUES)
@examples(200)
def test_what_a_function_closes_over_tells_it_from_others(value, other):
    assert of(order_by(value)) == of(order_by(copy.deepcopy(value)))
    assert of(Weighted(value)) == of(Weighted(copy.deepcopy(value)))
    if value != other:
        assert of(order_by(value)) != of(order_by(other))
        assert of(Weighted(value)) != of(Weighted(other))
        assert of(order_by(1, value)) != of(order_by(1, other))


def test_arrays_rules_and_settings_count():
    keys = [np.arange(3), np.arange(4), np.arange(3.0)]
    plans = [RollingPolicy(window=k) for k in (8, 9)]
    orders = [PriorityPolicy("mine", "", order_by(1), rule=rule) for rule in ("prefix", "skip")]
    found = [of(each) for each in (*map(order_by, keys), *plans, *orders)]
    assert len(set(found)) == len(found)
    assert of(order_by(np.arange(3))) == found[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KEPT = 0.8", "KEPT = 0.7"),  # a number that a helper reads
        ("return KEPT", "return 1 / KEPT"),  # the helper itself
        ("[state.waiting] + 1", "[state.waiting] + 2"),
    ],
)
def test_whatever_a_function_calls_counts(module, old, new):
    before = of(module())
    assert of(module()) == before
    assert of(module(old, new)) != before
    assert of(module("import numpy", "# where it stands does not count\nimport numpy")) == before
    assert of(module("first(state)", "second(state)")) == before  # which it does not call


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process(module, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from optsched.policies import "
        "get_policy; from optsched.experiments.cells import portable; "
        "print([portable(get_policy(f'of_a_user:{x}')).fingerprint for x in ('careful', 'peak')])"
    )
    module()
    here = [of(get_policy(f"of_a_user:{name}")) for name in ("careful", "peak")]
    assert printed(code) == str(here)


def test_names_that_mean_the_same_everywhere_are_sent_as_names(module, monkeypatch):
    for name in ("area", "area+backfill", "a-random", "rolling:relax-lp", ENGINE, "sorted-f"):
        assert carried(get_policy(name)) == name
    monkeypatch.setitem(POLICIES, "area", PriorityPolicy("area", "", order_by(2)))
    monkeypatch.setitem(POLICIES, "careful", module())
    for name in ("area", "careful", "of_a_user:peak", "of_a_user:peak+backfill"):
        assert isinstance(carried(get_policy(name)), Own)
    assert get_policy("of_a_user:peak+backfill").name == "peak+backfill"
    assert get_router("of_a_user:first").name == "first"


def test_they_run_alike_in_this_process_and_in_others(module, tmp_path):
    careful, seen = module(), []

    def by_weight(state):
        seen.append(1)  # stays in the copy
        return state.waiting[:2]

    table = {"name": [careful, "of_a_user:peak", by_weight, "area"]}
    routed = {"name": "area", "workers": 2, "router": ["jsq", "of_a_user:first"]}
    config = SMALL | {"policies": [table, routed]}
    frames = [
        sweep(config, tmp_path / str(jobs), jobs=jobs).to_pandas().drop(columns="seconds")
        for jobs in (1, 2)
    ]
    pd.testing.assert_frame_equal(*frames, check_like=True)
    frame = frames[0]
    assert set(frame.status) == {"ok"}
    assert frame.policy.tolist()[:6] == ["careful", "peak", "by_weight", "area", "area", "area"]
    assert frame.router.tolist()[4:6] == ["jsq", "first"]
    assert (frame.policy_fingerprint[frame.policy == "careful"] == of(careful)).all()
    for row in frame[frame.policy == "careful"].itertuples():
        instance = optsched.family("uniform", n=12, load=0.9, seed=row.seed)
        assert row.total_latency == optsched.run(instance, careful).total_latency
    assert not seen


class Pairs:
    """Batches of two in the order of arrival."""

    def __init__(self, instance):
        self.waiting = []

    def release(self, requests):
        self.waiting += requests.tolist()

    def next_batch(self):
        batch, self.waiting = self.waiting[:2], self.waiting[2:]
        return np.array(batch, dtype=np.int64)


def by_prompt(window):
    return window.place(np.argsort(window.prompts, kind="stable"))


def test_plans_batches_and_keys_of_the_state_are_sent_too(tmp_path):
    policies = [
        RollingPolicy(model=by_prompt, budget=60.0),
        BatchPolicy("pairs", "", Pairs),
        DynamicPolicy("aging", "", lambda state: -state.waited),
    ]
    frame = sweep(SMALL | {"policies": [{"name": policies}]}, tmp_path, jobs=1).to_pandas()
    assert set(frame.status) == {"ok"}
    for row in frame.itertuples():
        instance = optsched.family("uniform", n=12, load=0.9, seed=row.seed)
        policy = next(each for each in policies if each.name == row.policy)
        assert row.total_latency == optsched.run(instance, policy).total_latency


def test_results_of_another_policy_of_that_name_are_not_resumed(module, tmp_path):
    def config(policy):
        return SMALL | {"policies": [{"name": policy}]}

    def enclose(policy):
        how = {"loads": [0.8], "horizons": [20], "seeds": 2, "resume": True}
        return optsched.regret(policies=[policy], keep_instances=tmp_path / "regret", **how)

    def keyed():
        module()
        return get_policy("of_a_user:peak")

    sweep(config(module()), tmp_path / "sweep", jobs=1)
    assert sweep(config(module()), tmp_path / "sweep", jobs=1, resume=True).carried_out == 0
    assert enclose(keyed()).bands() == enclose(keyed()).bands()
    changed = config(module("0.8", "0.7"))
    with pytest.raises(OptschedError, match="differs in own code"):
        sweep(changed, tmp_path / "sweep", jobs=1, resume=True)
    module("i.prompts + i.outputs", "i.prompts")
    with pytest.raises(OptschedError, match="differs in policies"):
        enclose("of_a_user:peak")


LOCK = threading.Lock()


def locked(state):
    with LOCK:
        return state.waiting


def fails(state):
    return state.nothing


REFUSED = {
    "'locked' cannot be sent to other processes or told from others: TypeError: cannot pickle": [
        locked
    ],
    "policy 'fails' fails on the first 8 requests of": [fails],
    "the function '<lambda>' as a policy takes (x)": [lambda x: x],
    "3 is no policy": [3],
    "there are two of the name 'mine'; rename one": [
        DecisionPolicy("mine", "", lambda state: state.waiting),
        DecisionPolicy("mine", "", lambda state: state.waiting[:1]),
    ],
    "unknown policy 'nowhere:mine': there is no module": ["nowhere:mine"],
    "there is no module 'nowhere': if it is yours, add its folder to PYTHONPATH": ["nowhere:mine"],
    "policy 'unsound:mine': module 'unsound' fails when it is imported: ZeroDivision": [
        "unsound:mine"
    ],
    "module 'statistics' has no policy 'meen': did you mean 'mean'?": ["statistics:meen"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_run_is_refused_before_anything_runs(words, tmp_path, monkeypatch):
    (tmp_path / "unsound.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptschedError) as caught:
        sweep(SMALL | {"policies": [{"name": REFUSED[words]}]}, tmp_path / "out", jobs=1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    if len(REFUSED[words]) == 1:
        with pytest.raises(OptschedError) as caught:
            optsched.regret("family:equal-prompts", REFUSED[words], [0.8], [20], seeds=2)
        assert words.split(" on the")[0] in str(caught.value)
