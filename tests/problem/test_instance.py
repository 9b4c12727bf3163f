"""Instance: validation, printing, copies and round trips."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from strategies import instances
from tabled import tabled

from optsched import Instance, Schedule, explain_infeasibility, family, read_trace
from optsched.errors import InstanceError, ScheduleError


def test_arrays_are_frozen_copies():
    prompts = np.array([1, 2])
    instance = Instance(prompts, [1, 1], memory=4)
    prompts[0] = 3
    assert instance.prompts.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        instance.prompts[0] = 5


@given(instances())
def test_round_trip_through_json_pickle_and_replace(instance):
    assert Instance.from_json(instance.to_json()) == instance
    assert pickle.loads(pickle.dumps(instance)) == instance
    assert instance.replace() == instance
    assert hash(instance.replace()) == hash(instance)


def test_round_trip_keeps_every_field(tmp_path):
    instance = Instance(
        [1, 2],
        [3, 4],
        memory=9,
        arrivals=[0, 2],
        weights=[1.5, 2],
        deadlines=[9, 30],
        output_lower=[1, 4],
        output_upper=[3, 8],
        labels=["a", "b,c"],
        name="full",
        seconds_per_step=0.05,
    )
    path = tmp_path / "instance.json"
    instance.to_json(path)
    assert Instance.from_json(path) == instance
    assert Instance.from_json(instance.to_json()).labels == ("a", "b,c")


def test_fingerprint_sees_what_decides_the_optimum():
    instance = Instance([1, 2], [3, 4], memory=9)
    assert instance.replace(name="other").fingerprint == instance.fingerprint
    for change in (
        {"memory": 10},
        {"prompts": [1, 1]},
        {"outputs": [3, 3]},
        {"arrivals": [0, 1]},
        {"weights": [1, 1]},
        {"deadlines": [50, 50]},
    ):
        assert instance.replace(**change).fingerprint != instance.fingerprint


def test_areas_are_sums_of_usage():
    instance = Instance([0, 7], [1, 3], memory=20)
    assert instance.areas.tolist() == [1, 8 + 9 + 10]


def test_print_shows_what_a_person_checks():
    text = str(Instance([10, 30], [5, 5], 70, arrivals=[0, 4], deadlines=[50, 60], name="demo"))
    assert text.splitlines() == [
        "demo: 2 requests, memory 70 tokens",
        "  prompt    mean 20.0, median 20, max 30 tokens",
        "  output    mean 5.0, median 5, max 5 tokens",
        "  largest   35 tokens at completion (50% of memory)",
        "  arrivals  steps 0 .. 4",
        "  load      0.82 of the memory-time of arrivals",
        "  also      deadlines",
    ]
    assert repr(Instance([1], [1], 2)) == "<Instance 'instance': 1 requests, memory 2>"


def test_take_keeps_labels_and_all_columns():
    instance = Instance([1, 2, 3], [1, 1, 1], 9, weights=[1, 2, 3], arrivals=[0, 1, 2])
    part = instance.take([0, 2])
    assert part.labels == ("0", "2")
    assert part.weights.tolist() == [1, 3]
    assert part.take([1]).labels == ("2",)


def test_equality_is_by_value_and_type():
    assert Instance([1], [1], 2) != Instance([1], [1], 3)
    assert Instance([1], [1], 2) != "instance"


@tabled()
def test_bad_values_are_named(fields, message):
    with pytest.raises(InstanceError, match=message):
        Instance(**({"prompts": [1], "outputs": [1], "memory": 10} | fields))


def test_error_carries_its_place():
    with pytest.raises(InstanceError) as caught:
        Instance([1, 1], [1, 0], memory=10)
    assert (caught.value.column, caught.value.request, caught.value.value) == ("outputs", 1, 0)
    assert caught.value.reason == "outputs is 0, but every request makes at least 1 token"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the JSON text is not valid JSON"),
        ('{"prompts": [1], "outputs": [1]}', "the key 'memory' is missing"),
        ('{"prompts": [1], "outputs": [1], "memory": 3, "speed": 1}', "unknown key 'speed'"),
        ('{"format": "other"}', "is not an optsched instance"),
        ('{"prompts":' + 100_000 * "[", "not valid JSON: maximum recursion depth"),
        (f'{{"memory": {5000 * "9"}}}', "not valid JSON: Exceeds the limit"),
        ('{"prompts": [1, [2]], "outputs": [1, 1], "memory": 9}', "prompts must be a list of num"),
    ],
    ids=range(7),
)
def test_bad_json_is_refused(text, message):
    """Of 3,000 mutated files three with nested lists or long numbers ended in a traceback."""
    with pytest.raises(InstanceError, match=message):
        Instance.from_json(text)


def test_json_file_without_an_object_is_refused(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1, 2]")
    with pytest.raises(InstanceError, match=r"list\.json holds no JSON object"):
        Instance.from_json(path)


def test_priorities_stay_with_their_requests(tmp_path):
    instance = Instance([1, 2, 3], [4, 5, 6], 20, priorities=[3, -1, 0])
    assert Instance.from_json(instance.to_json()) == instance
    assert instance.take([0, 2]).priorities.tolist() == [3, 0]
    instance.to_csv(tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv", memory=20).priorities.tolist() == [3, -1, 0]
    with pytest.raises(InstanceError, match="priorities has 2 entries for 3 requests"):
        instance.replace(priorities=[1, 2])


def test_ticks_of_a_clock_are_written_in_seconds(tmp_path):
    instance = Instance([1, 2, 3], [4, 5, 6], 20, [0, 7, 1_300_001], seconds_per_step=1e-6)
    instance.to_csv(tmp_path / "trace.csv")
    read = read_trace(tmp_path / "trace.csv", memory=20, seconds_per_step=1e-6)
    assert read == instance.replace(name="trace")
    instance.replace(seconds_per_step=0.05).to_csv(tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv", memory=20).arrivals.tolist() == [0, 7, 1_300_001]


NUMBERS = ["arrivals", "weights", "deadlines", "output_lower", "priorities", "output_estimates"]


@pytest.mark.parametrize("field", [*NUMBERS, "prompts", "outputs", "clients", "pauses", "follows"])
@pytest.mark.parametrize("unit", ["ns", "ms", "s", "D"])
def test_dates_and_durations_are_no_counts_and_the_hint_works(field, unit):
    dates = np.array(["2023-11-16", "2023-11-17", "2023-11-18"], dtype=f"datetime64[{unit}]")
    plain = {"prompts": [1, 1, 1], "outputs": [1, 1, 1], "memory": 10**9, "follows": [-1] * 3}
    for times in (dates, dates - dates[0], pd.Series(dates), list(pd.Series(dates))):
        with pytest.raises(InstanceError, match=f"^{field} holds dates or durations") as caught:
            Instance(**plain | {field: times})
        if field in NUMBERS and field != "deadlines" and hasattr(times, "min"):
            hint = re.search(r"np\.ceil\(.*\)(?=,)", str(caught.value))[0]
            steps = eval(hint, {"np": np, field: times})  # noqa: S307
            assert steps.tolist() == [0, 1_728_000, 3_456_000]
            assert Instance(**plain | {field: steps + 1}) is not None


def test_a_duration_is_no_number_where_one_is_asked_for():
    for value in (np.timedelta64(5, "ns"), np.datetime64("2023-11-16", "ns")):
        with pytest.raises(InstanceError, match="memory is np"):
            Instance([1], [1], value)
        with pytest.raises(InstanceError, match="seconds_per_step is np"):
            Instance([1], [1], 9, seconds_per_step=value)
        with pytest.raises(InstanceError, match="rate is np"):
            family("uniform", n=2, rate=value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "x"], "request 1: starts is 'x', but must be a number"),
        ([0, None], "request 1: starts is None, but must be a number"),
        (["0", 1], "request 0: starts is '0', but must be a number"),
        ([0, 10**400], "request 1: starts is 1000"),
        ([0, 1j], "request 1: starts is 1j"),
    ],
)
def test_what_is_no_number_is_named_with_its_place(values, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(Instance([1, 1], [1, 1], 9), values)


def test_requests_of_equal_labels_are_told_apart():
    instance = Instance([5, 5, 1], [3, 3, 1], 8, deadlines=[3, 3, 9], labels=["b", "b", "c"])
    assert [instance.label(i) for i in range(3)] == ["b (request 0)", "b (request 1)", "c"]
    assert instance.take([1, 0]).labels == ("b", "b")
    assert instance.take([-1, -3]).labels == ("c", "b")
    said = str(explain_infeasibility(instance))
    assert "b (request 0) and b (request 1) cannot both complete" in said
    assert instance.to_pandas()["label"].tolist() == ["b", "b", "c"]
    assert Instance([1, 1], [1, 1], 9, follows=[-1, 0]).take([-1]).follows.tolist() == [-1]


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), np.datetime64("NaT")])
def test_a_missing_label_is_the_number_of_the_request(missing):
    assert Instance([5, 5], [2, 2], 20, labels=["a", missing]).labels == ("a", "1")
    table = pd.DataFrame(
        {"prompt_tokens": [5, 5], "output_tokens": [2, 2], "label": ["a", missing]}
    )
    assert Instance.from_pandas(table, 20).labels == ("a", "1")
