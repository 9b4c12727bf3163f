"""Arguments: every number that is a count counts, and what is none gets one sentence."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed import SERVING

import optsched
from optsched import Beliefs, Cluster, Instance, Workers, bound, compare, family, regret, run, solve
from optsched._internal.arguments import as_count, checked
from optsched.errors import InstanceError, OptschedError, PolicyError
from optsched.policies import EnginePolicy, IntervalPolicy, RollingPolicy
from optsched.simulate.cluster import BalanceRouting, Predictor

INSTANCE = Instance([3, 2, 4, 1], [2, 4, 1, 3], 12, [0, 0, 1, 2], seconds_per_step=1.0)
CLUSTER = Cluster(2, 2)

#: Each takes a count.
COUNTED = {
    "workers": lambda n: run(INSTANCE, "fcfs", workers=n).placement.tolist(),
    "solve": lambda n: solve(INSTANCE, workers=n).objective,
    "bound": lambda n: bound(INSTANCE, workers=n).value,
    "seed": lambda n: run(INSTANCE, "a-random", seed=n).starts.tolist(),
    "n": lambda n: family("uniform", n=n),
    "family": lambda n: family("equal-prompts", n=9, output_most=n),
    "limit": lambda n: optsched.read_trace("family:uniform,n=9", limit=n),
    "memory": lambda n: Instance([0], [1], n),
    "workers of a cluster": lambda n: Cluster(n, n, memory=n),
    "steps": lambda n: run(INSTANCE, "jsq", cluster=CLUSTER, steps=n, reveal=n).steps,
    "lookahead": lambda n: run(INSTANCE, BalanceRouting(n), cluster=CLUSTER).starts.tolist(),
    "predictor": lambda n: Predictor(n),
    "engine": lambda n: (
        run(INSTANCE, EnginePolicy("e", "", max_num_seqs=n, block_size=n), clock="unit").makespan
    ),
    "rolling": lambda n: RollingPolicy(window=n, horizon=n, scenarios=n),
    "patience": lambda n: run(INSTANCE, "alpha-greedy", patience=n).makespan,
    "threads": lambda n: optsched.SolveParams(threads=n, seed=n).threads,
    "hindsight": lambda n: optsched.HindsightProgram(INSTANCE, now=n).now,
    "max_num_seqs": lambda n: bound(INSTANCE, clock="unit", max_num_seqs=n).value,
    "gpus": lambda n: optsched.clock.hardware.memory_tokens("llama-2-7b", "a100-80gb", n),
}
if SERVING:
    COUNTED["vllm"] = lambda n: optsched.policies.VllmPolicy("v", "", block_size=n, max_num_seqs=n)


@pytest.mark.parametrize("what", COUNTED)
def test_a_count_means_the_same_in_every_type(what):
    count, expected = COUNTED[what], COUNTED[what](3)
    for same in (np.int64(3), np.uint8(3), 3.0, np.float64(3), np.array(3), Fraction(3)):
        assert count(same) == expected, repr(same)


@pytest.mark.parametrize("what", COUNTED)
@pytest.mark.parametrize("value", [True, 2.5, np.nan, np.inf, "x", None.__class__, 10**30, [[3]]])
def test_what_is_no_count_gets_one_sentence(what, value):
    with pytest.raises(OptschedError, match=r" (is|are) ") as caught:
        COUNTED[what](value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=3), st.none()))
def test_only_whole_numbers_in_range_are_counts(value):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value == value and 1 <= value <= 9 and int(value) == value:
        assert as_count("n", value, 1, 9) == value
        return
    with pytest.raises(InstanceError, match=r"^n is .*, but must be a whole number from 1 to 9$"):
        as_count("n", value, 1, 9)


#: What is passed in the place of something else, and what the sentence says.
WRONG = [
    (lambda: run(INSTANCE, "area-chance", beliefs=len), "beliefs is <built-in .*Beliefs or an In"),
    (lambda: compare(INSTANCE, "area", bound=True), "bound is True, but must be a Bound or a Clo"),
    (lambda: run(3, "area"), "instance is 3, but must be an Instance"),
    (lambda: run(INSTANCE, "jsq", cluster=2), "cluster is 2, but must be a Cluster"),
    (lambda: run(INSTANCE, "a-min", intervals=3), "intervals is 3, but must be a text"),
    (lambda: solve(INSTANCE, params={}), "params is {}, but must be a SolveParams"),
    (
        lambda: optsched.sweep({}, "x", "dask", address=3),
        "address is 3, but must be that of a Dask",
    ),
    (lambda: optsched.models.equilibrium(3, "unit"), "types is 3, but must be a RequestTypes"),
    (
        lambda: optsched.models.WaitThresholds(None, "unit"),
        "types is None, but must be a RequestTypes",
    ),
    (lambda: bound(INSTANCE, objective=[1]), r"objective is \[1\], but must be a text"),
    (lambda: IntervalPolicy("e", "", outlived="dies"), "unknown outlived 'dies': did you"),
    (lambda: EnginePolicy("e", "", batching=3), "batching is 3, but must be a text"),
    (lambda: compare([3], cluster=CLUSTER), "one of the instances is 3, but must be an Instance"),
    (lambda: Workers(np.array(3)), r"memories is array\(3\), but must be a list"),
    (lambda: Beliefs([["x"]]), r"chances are \[\['x'\]\], but must be numbers"),
    (lambda: Predictor(3, relative_error=np.inf), "relative_error is inf, but must not be neg"),
    (lambda: regret(seeds="5"), "seeds is '5', but must be a whole number"),
]


@pytest.mark.parametrize(("call", "sentence"), WRONG)
def test_a_wrong_type_gets_one_sentence(call, sentence):
    with pytest.raises(OptschedError, match=f"^{sentence}"):
        call()


@pytest.mark.slow
def test_beliefs_that_a_policy_would_ignore_are_refused():
    beliefs = Beliefs([[0.25] * 4], rows=[0] * 4)
    known = {"intervals": "common:1,4", "beliefs": beliefs}
    for ignores in ("a-min", "h-sf", "rolling"):
        for call in (run, compare):
            with pytest.raises(PolicyError, match=f"but not for {ignores}; leave them out"):
                call(INSTANCE, ignores, **known)
    both = compare(INSTANCE, ["a-min", "area-chance"], **known)
    alone = run(INSTANCE, "a-min", intervals="common:1,4")
    assert both["a-min"].starts.tolist() == alone.starts.tolist()


def test_a_family_that_is_given_a_parameter_twice_is_refused():
    with pytest.raises(InstanceError, match=re.escape("n is there twice; keep one of them")):
        optsched.read_trace("family:uniform,n=5,n=6")


def test_annotations_that_may_be_anything_are_left_to_the_function():
    @checked(PolicyError)
    def entry(one, two: int | None = None, **more: int):
        return one, two, more

    assert entry("x", 2.0, three=True) == ("x", 2, {"three": True})
    assert entry(one=1) == (1, None, {})
    with pytest.raises(TypeError):
        entry()


def test_an_argument_that_is_none_is_answered_by_the_one_that_was_meant():
    with pytest.raises(
        OptschedError, match="solve has no argument 'timelimit': did you mean 'time_l"
    ):
        solve(INSTANCE, timelimit=3)
    with pytest.raises(PolicyError, match="RollingPolicy has no argument 'windows': did you mean"):
        RollingPolicy(windows=3)
