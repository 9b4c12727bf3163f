"""Policies on several instances: means, paired differences, and what they support."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from optsched import Instance, PriorityPolicy, compare, family, run
from optsched.errors import InstanceError, PolicyError

POLICIES = ["fcfs", "mc-sf", "area"]
INSTANCES = [family("chat-and-summaries", n=60, load=1.3, seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def found():
    """Three policies on five instances."""
    return compare(INSTANCES, POLICIES)


def test_each_instance_is_compared_as_by_itself(found):
    assert len(found) == len(INSTANCES)
    for instance, part in zip(INSTANCES, found, strict=True):
        alone = compare(instance, POLICIES)
        for name in POLICIES:
            assert part[name].total_latency == run(instance, name).total_latency
            assert part.gap(name) == alone.gap(name)
    entries = found.to_dict()["instances"]
    assert all(entry["bounds"][0]["premises"] for entry in entries)
    assert [each["policy"] for each in entries[0]["policies"]] == POLICIES


def test_means_and_differences_are_those_of_student(found):
    values = {name: found.values(name) for name in POLICIES}
    for name in POLICIES:
        ends = stats.ttest_1samp(values[name], 0).confidence_interval(0.95)
        assert found.mean(name)[1:] == pytest.approx(tuple(ends))
        # Two differences to one policy hold together with 95 %.
        ends = stats.ttest_rel(values[name], values["fcfs"]).confidence_interval(1 - 0.05 / 2)
        assert name == "fcfs" or found.difference(name, "fcfs")[1:] == pytest.approx(tuple(ends))
    rows = {row["policy"]: row for row in found.against("fcfs").means}
    assert rows["fcfs"]["difference"] is None
    assert rows["area"]["difference"]["mean"] == pytest.approx(
        (values["area"] - values["fcfs"]).mean()
    )
    gaps = [part.gap("area") for part in found]
    assert (rows["area"]["gap"], rows["area"]["largest_gap"]) == (
        pytest.approx(np.mean(gaps)),
        max(gaps),
    )


def crowd(count):
    """A long request comes before short ones, whose number varies."""
    return [Instance([63] + k * [1], [1] + k * [2], memory=64) for k in range(21 - count, 21)]


def test_the_best_is_named_only_where_the_intervals_support_it(found):
    sure = compare(crowd(6), ["mc-sf", "sorted-f"])
    assert sure.difference("mc-sf", "sorted-f").low > 0
    assert (sure.best, sure.leading) == ("sorted-f", ["sorted-f"])
    assert "sorted-f is the best: shown with 95 % confidence." in str(sure)
    assert "sorted-f (best)" in str(sure)
    twin = PriorityPolicy("twin", "as mc-sf", lambda instance: instance.outputs)
    tied = compare(crowd(3), ["mc-sf", twin])
    assert (tied.best, tied.leading) == (None, ["mc-sf", "twin"])
    assert "mc-sf has the least mean of these instances, but twin may be as good" in str(tied)
    for name in found.leading:
        assert name == found.least or found.difference(name, found.least).low <= 0
    assert (found.best is None) == (len(found.leading) > 1)
    assert ("(best)" in str(found)) == (found.best is not None)


def test_one_instance_and_repeated_ones_support_nothing():
    one = compare(INSTANCES[:1], POLICIES)
    assert one.best is None
    assert math.isinf(one.mean("area").high)
    assert one.means[0]["mean_latency"]["low"] is None
    assert "One instance has no intervals" in str(one)
    twice = compare(2 * INSTANCES[:1], POLICIES)
    assert twice.best is None
    assert "Only 1 of the 2 instances differ" in str(twice)


def test_seeds_follow_each_other():
    same = compare(3 * INSTANCES[:1], "a-random", intervals="exact", seed=7)
    for seed, part in enumerate(same, 7):
        alone = run(INSTANCES[0], "a-random", intervals="exact", seed=seed)
        assert part["a-random"].total_latency == alone.total_latency


def test_on_a_clock_and_under_intervals():
    timed = [instance.replace(seconds_per_step=0.05) for instance in INSTANCES[:2]]
    found = compare(timed, ["fcfs", "work"], clock="llama-2-70b-2xa100")
    assert "mean latency in s over 2 instances" in str(found)
    assert found.values("work")[1] == run(timed[1], "work", clock=found.parts[0].clock).mean_latency
    known = compare(INSTANCES[:3], ["a-min", "h-sf"], intervals="relative:0.5")
    assert known.least == "a-min"  # the other one knows the outputs
    stopped = compare(timed, ["fcfs", "area"], clock="llama-2-70b-2xa100", until=20.0)
    assert stopped.best is None
    assert stopped.means[0]["gap"] is None


def test_what_cannot_be_compared_is_one_sentence(found):
    with pytest.raises(InstanceError, match="one of the instances is 3, but must be an Instance"):
        compare([INSTANCES[0], 3], POLICIES)
    with pytest.raises(InstanceError, match="there is no instance"):
        compare([], POLICIES)
    with pytest.raises(PolicyError, match="policy 'aera' did not run: did you mean 'area'"):
        found.against("aera")
    with pytest.raises(PolicyError, match="no metric 'makespam': did you mean 'makespan'"):
        found.mean("area", "makespam")

    def never(state):
        return []

    some = compare(INSTANCES[:2], ["area", never], patience=50)
    assert some.policies == ["area"]
    assert "never does not complete all requests everywhere." in str(some)


def test_it_is_shown_in_all_ways(found, tmp_path):
    assert repr(found).startswith("<Replications of fcfs, mc-sf, area on 5 instances")
    assert "<td" in found._repr_html_()
    frame = found.to_pandas()
    assert frame.loc[(2, "area"), "total_latency"] == run(INSTANCES[2], "area").total_latency
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "3 policies on 5 instances" in page
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(found.plot().patches) == len(POLICIES)
