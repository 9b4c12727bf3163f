"""Fingerprints: any change of any field of whatever is asked makes another one."""

import copy
import functools
import os
import threading
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from effort import examples
from fresh import printed
from hypothesis import given
from hypothesis import strategies as st
from installed import with_serving

from optsched import POLICIES, Beliefs, Cluster, Instance, PriorityPolicy, RunSettings, SolveParams
from optsched._internal.fingerprints import fingerprint
from optsched.clock import FunctionClock, LinearClock
from optsched.experiments.cells import portable
from optsched.experiments.regret_cells import RegretTask, read_source
from optsched.experiments.sweep_plan import Source, SweepRun
from optsched.problem.workers import ROUTERS, Workers

FULL = Instance(
    [3, 4],
    [2, 5],
    30,
    [0, 1],
    weights=[1.0, 2.0],
    deadlines=[9, 9],
    output_lower=[1, 1],
    output_upper=[6, 6],
    labels="ab",
    name="full",
    seconds_per_step=0.5,
    priorities=[0, 1],
    output_estimates=[2, 2],
    hash_ids=[[7], [7, 8]],
    hash_block=4,
    follows=[-1, 0],
    pauses=[0, 3],
    clients=[0, 1],
)
CLOCK = LinearClock("mine", 0.1, 0.01, hinges=((8, 0.5),))


def key(instance):
    return instance.outputs


ORDER = PriorityPolicy("order", "by output", key)
QUESTIONS = [
    FULL,
    CLOCK,
    FunctionClock(lambda batch: 1.0),
    Workers([30, 20], [[True, False], [True, True]]),
    Beliefs([[0.5, 0.5]]),
    Cluster(2, 30),
    RunSettings(clock=CLOCK, workers=2, router="jsq", intervals="exact"),
    SolveParams(),
    *(replace(POLICIES[name], order=ORDER) for name in with_serving("vllm")),
    SweepRun(
        Source((("trace", "t.csv"),), FULL), portable(ORDER), (("clock", CLOCK),), 3, bound=True
    ),
    RegretTask(read_source(FULL, clock=CLOCK), ("area", ORDER), 0.5, 1.0, 20, 0, 0.0),
    *POLICIES.values(),
    *ROUTERS.values(),
]


def otherwise(value):
    """Yield values that differ from one."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float | np.number):
        yield from (3.25, -3.25) if np.isinf(value) else (value + 1, -value - 2)
    elif isinstance(value, str):
        yield from (value + "x", None)
    elif isinstance(value, np.ndarray):
        yield np.append(value, value[:1], axis=0)
        yield value.reshape(-1, 1, 1)
        for place in np.ndindex(value.shape):
            other = value.copy()
            other[place] = not other[place] if other.dtype == bool else other[place] + 1
            yield other
        if value.dtype == np.int64:
            yield value.astype(np.uint64)
            yield value.view(np.float64)
    elif isinstance(value, tuple | list):
        made = getattr(value, "_make", type(value))  # of a NamedTuple
        if made is type(value):
            yield made([*value, 0])
        for place, each in enumerate(value):
            for other in otherwise(each):
                yield made([*value[:place], other, *value[place + 1 :]])
    elif isinstance(value, dict):
        yield {**value, "another": 1}
    elif is_dataclass(value):
        yield from changes(value)
    elif callable(value):
        yield lambda *_: 7
    else:
        yield from (0, "")


def changes(value):
    """Yield copies of a dataclass, each with one field that differs, at any depth."""
    for field in fields(value):
        for other in otherwise(getattr(value, field.name)) if field.compare else ():
            new = object.__new__(type(value))
            for each in fields(value):
                object.__setattr__(new, each.name, getattr(value, each.name))
            object.__setattr__(new, field.name, other)
            yield new


@pytest.mark.parametrize("value", QUESTIONS, ids=lambda value: type(value).__name__)
def test_a_change_of_any_field_changes_it(value):
    found = [fingerprint(each) for each in changes(value)]
    assert len(found) >= len(fields(value)) - 1
    assert fingerprint(value) not in found
    assert len(set(found)) == len(found)
    assert fingerprint(copy.deepcopy(value)) == fingerprint(value)


def test_the_keys_of_what_is_kept_change_with_any_field():
    run = next(each for each in QUESTIONS if isinstance(each, SweepRun))
    keys = [each.key for each in changes(run)]
    assert len(set(keys)) == len(keys) > 100
    assert run.key not in keys
    swapped = SweepRun(run.source, run.policy, (*run.options, ("until", 3.0)), run.seed, bound=True)
    assert (
        swapped.key
        == SweepRun(*list(vars(swapped).values())[:2], swapped.options[::-1], 3, True).key
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def shape_of(value):
    """Return a value with its types, so that what is equal is alike."""
    if isinstance(value, list | tuple):
        return type(value), [shape_of(each) for each in value]
    if isinstance(value, dict):
        return dict, sorted((name, repr(shape_of(each))) for name, each in value.items())
    return type(value), repr(value)


@pytest.mark.few
@given(VALUES, VALUES)
@examples(300)
def test_plain_values_have_the_same_one_where_they_are_the_same(value, other):
    assert (fingerprint(value) == fingerprint(other)) == (shape_of(value) == shape_of(other))
    assert fingerprint(copy.deepcopy(value)) == fingerprint(value)


def test_texts_that_meet_elsewhere_differ():
    for value, other in (
        (("a", "bc"), ("ab", "c")),
        ([["a"], "b"], [["a", "b"]]),
        ("1", 1),
        (1, 1.0),
        (0.0, -0.0),
        (True, 1),
        (None, "None"),
        (b"a", "a"),
        (np.datetime64(5, "s"), np.datetime64(5, "ms")),
        (np.array(["a", None], dtype=object), np.array([None, "a"], dtype=object)),
        (np.zeros(2, dtype="i8,f8"), np.zeros(2, dtype="i8,i8")),
        (np.ones((2, 3)), np.ones((3, 2))),
        ({"a": 1}, [("a", 1)]),
        (functools.partial(key, 1), functools.partial(key, 2)),
    ):
        assert fingerprint(value) != fingerprint(other)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_what_cannot_be_told_from_others_is_refused():
    for value in ((each for each in ()), threading.Lock(), memoryview(b"")):
        with pytest.raises(TypeError, match="cannot pickle"):
            fingerprint(value)


CODES = {
    "weight: float = 1.0": "weight: float = 2.0",
    "self.weight / 2": "self.weight / 3",
    "2 * x": "3 * x",
    "x + 1": "x + 2",  # behind a cache
    "LIMITS = {1: 2, 3: 4}": "LIMITS = {3: 4, 1: 2}",  # what is first may decide
    "wide.SIZE = 5": "wide.SIZE = 6",  # set by whoever imports the module
    "except OSError": "except ValueError",
    'KNOWN = {"a", "b", "c", "d"}': 'KNOWN = {"a", "b", "c", "e"}',
}
MODULE = """import functools
from dataclasses import dataclass
import wide_of_a_user as wide
wide.SIZE = 5
LIMITS = {1: 2, 3: 4}
KNOWN = {"a", "b", "c", "d"}

@functools.cache
def remembered(x):
    return x + 1

@dataclass
class Mine:
    weight: float = 1.0

    @property
    def half(self):
        return self.weight / 2

    @staticmethod
    def twice(x):
        return 2 * x

def careful(instance):
    try:
        first = next(iter(LIMITS)) + remembered(3) + wide.SIZE + ("x" in {"p", "q", "r"})
    except OSError:
        return instance.prompts
    return Mine().half * Mine.twice(first) + len(KNOWN) + instance.outputs
"""
ASK = """
import sys; sys.path.insert(0, {!r})
import nasty_of_a_user
from optsched._internal.fingerprints import Identity
print(Identity(ordered=True).of(nasty_of_a_user.careful))
"""


@pytest.mark.slow
def test_code_that_does_otherwise_has_another_one_and_equal_code_the_same(tmp_path):
    def asked(old="", new="", seed="1"):
        assert not old or MODULE.count(old) == 1
        (tmp_path / "wide_of_a_user.py").write_text("SIZE = 1\n")
        (tmp_path / "nasty_of_a_user.py").write_text(MODULE.replace(old, new) if old else MODULE)
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        return printed(ASK.format(str(tmp_path)), env=env)

    found = [asked(old, new) for old, new in CODES.items()]
    assert asked() == asked(seed="2") == asked("LIMITS = {1", "# moved\nLIMITS = {1")
    assert asked() not in found
    assert len(set(found)) == len(found)
