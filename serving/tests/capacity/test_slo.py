"""Objectives: what their text means, and what a run attains of them."""

from fractions import Fraction

import numpy as np
import pytest
from tabled import tabled
from trace_samples import QWEN

from optsched import Instance, OptschedError, Slo, read_trace
from optsched.problem.execution import Times
from optsched_serving.capacity.slo import as_percent, as_slos


@pytest.mark.parametrize(
    ("text", "limits", "share", "tenant"),
    [
        ("ttft:p99<=2", {"ttft": 2.0}, Fraction(99, 100), None),
        ("tpot:mean<=0.05", {"tpot": 0.05}, None, None),
        ("latency:max<=30", {"latency": 30.0}, Fraction(1), None),
        ("latency : p99.9 <= 1e3", {"latency": 1000.0}, Fraction(999, 1000), None),
        ("within:ttft<=1&tpot<=.08:99%", {"ttft": 1, "tpot": 0.08}, Fraction(99, 100), None),
        ("acme/ttft:p50<=1", {"ttft": 1.0}, Fraction(1, 2), "acme"),
        ("ttft:p99<=500ms", {"ttft": 0.5}, Fraction(99, 100), None),
        ("within:ttft<=1s&tpot<=80ms:99%", {"ttft": 1, "tpot": 0.08}, Fraction(99, 100), None),
        ("latency:max<=1step", {"latency": 1.0}, Fraction(1), None),
    ],
)
def test_texts_say_what_is_limited_and_for_how_many(text, limits, share, tenant):
    slo = Slo(text)
    assert (slo.limits, slo.share, slo.tenant) == (limits, share, tenant)
    assert Slo(str(slo)) == slo


@tabled(("ttft:p" + "9" * 9999 + "<=2", "above 0 and at most 100"))
def test_what_is_no_objective_is_refused_in_one_sentence(text, said):
    with pytest.raises(OptschedError, match=said) as refused:
        Slo(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_no_objective_is_refused():
    with pytest.raises(OptschedError, match="there is no objective"):
        as_slos([], "s")


def test_percentiles_count_requests_and_the_unfinished_meet_nothing():
    times = Times(
        np.array([1.0, 2.0, 3.0, np.nan]), np.array([1.0, 1.0, 1.0, 0.5]), np.full(4, np.nan)
    )
    every = np.ones(4, dtype=bool)
    assert Slo("latency:p50<=2").attained(times, every) == (True, 0.5)
    assert Slo("latency:p51<=2").attained(times, every) == (False, 0.5)
    assert Slo("ttft:max<=1").attained(times, every) == (False, 0.75)
    assert Slo("latency:mean<=9").attained(times, every) == (False, 0.0)
    assert Slo("latency:mean<=1").attained(Times(*(t[:3] for t in times)), every[:3]) == (
        False,
        0.5,
    )


def test_single_tokens_have_no_time_per_token_but_meet_conditions_within():
    instance = Instance([1, 1], [1, 5], memory=9)
    times = Times(np.array([1.0, 9.0]), np.array([1.0, 1.0]), np.array([np.nan, 2.0]))
    pure, both = Slo("tpot:p90<=1"), Slo("within:tpot<=1:50%")
    assert pure.asked(instance).tolist() == [False, True]
    assert pure.attained(times, pure.asked(instance)) == (False, 0.0)
    assert both.attained(times, both.asked(instance)) == (True, 0.5)


def test_a_tenant_is_read_from_labels():
    instance = Instance([1, 1], [1, 5], memory=9, labels=["acme/1", "zeta/1"])
    assert Slo("acme/ttft:max<=1").asked(instance).tolist() == [True, False]
    with pytest.raises(OptschedError, match="no label begins with 'beta/'"):
        Slo("beta/ttft:max<=1").asked(instance)


@pytest.mark.parametrize("count", [7, 50, 100, 800, 1000])
def test_a_share_is_shown_as_it_is_or_rounded_down_once(count):
    """0.98 was shown as 97.99 %, and 95 % as 94.99 %."""
    for within in range(count + 1):
        exact = Fraction(100 * within, count)
        shown = Fraction(as_percent(within / count).rstrip("%"))
        assert exact - Fraction(1, 100) < shown <= exact
        assert shown == exact or (100 * exact).denominator > 1


def test_classes_of_a_trace_are_tenants(tmp_path):
    path = tmp_path / "qwen.jsonl"
    path.write_text(QWEN)
    assert Slo("file/latency:max<=9").asked(read_trace(path, 999)).sum() == 1
