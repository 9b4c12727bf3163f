"""Tables say what is proven, and show names as they are."""

import re

import pytest
from installed import SERVING

from optsched import Instance, PriorityPolicy, compare, family
from optsched._internal.views import html
from optsched.report.tables import REFERENCE, clock_table, comparison_table, facts_table, to_text


def test_gaps_are_rounded_up_and_bounds_down(example):
    lines = to_text(comparison_table(example)).splitlines()
    best = next(line for line in lines if "mc-sf-total" in line)
    assert best.split()[:5] == [
        "mc-sf-total",
        "(tied)",
        "outputs",
        "45",
        "4.5%",
    ]  # the gap is 0.0444
    bound = next(line for line in lines if "proven bound" in line)
    assert float(bound.split()[2]) <= example.bound.value


def test_a_name_is_no_markup():
    policy = PriorityPolicy("[red]mine[/red]", "", lambda instance: instance.areas)
    table = comparison_table(compare(Instance([1], [2], memory=3), [policy]))
    assert "[red]mine[/red]" in to_text(table)


@pytest.mark.slow
def test_no_number_is_cut_where_policies_have_long_names():
    requests = family("uniform", n=300, seed=1, rate=50, seconds_per_step=1e-6, memory=2000)
    policies = ["mixed", "alpha-beta-clearing:0.2,0.2", "alpha-greedy:0.25"]
    compared = compare(requests, policies, clock="llama-2-70b-2xa100", until=6)
    assert all(run.unfinished for run in compared.runs)
    table = to_text(clock_table(compared))
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    for run in compared.runs:
        assert f"{run.peak_memory:,} " in table
        assert f"{run.mean_latency:,.4g} " in table


def test_html_says_what_the_text_says_and_takes_names_as_text(example):
    page = html("comparison_table", example)
    text = to_text(comparison_table(example))
    shown = re.findall(r"<t[dh] [^>]*>(.*?)</t[dh]>", page)
    for cell in shown:
        assert cell in text
    assert page.count("<tr>") == len(example) + 2
    assert page.count("font-weight: bold") == 4 * len(comparison_table(example).columns)
    policy = PriorityPolicy("<b>$mine", "", lambda instance: instance.areas)
    page = html("comparison_table", compare(Instance([1], [2], memory=3), [policy]))
    assert "&lt;b&gt;$mine" in page
    assert "<b>" not in page


def test_facts_are_rounded_so_that_they_remain_proven():
    facts = {"objective": 200, "bound": 199.99999999, "gap": 1e-9, "status": "time limit"}
    facts |= {
        "proven_optimal": False,
        "starts": [1, 2],
        "certificate": None,
        "seconds": 0.123456789,
    }
    table = facts_table(facts)
    assert {row.name: text for row in table.rows for _, text in row.cells} == {
        "objective": "200",
        "bound": "199.999",
        "gap": "0.1%",
        "status": "time limit",
        "proven optimal": "no",
        "seconds": "0.123457",
    }
    above = facts_table({"objective": 10.5, "bound": 12.0000001})  # of what is maximised
    assert [row.cells[0][1] for row in above.rows] == ["10.5", "12.0001"]
    assert "<thead>" not in html("facts_table", facts)


def test_rows_are_sorted_and_the_best_is_marked(example):
    rows = comparison_table(example).rows
    totals = [row.cells[1][0] for row in rows]
    assert totals == sorted(totals)
    tied = totals.count(totals[0])
    assert [row.mark for row in rows] == ["tied"] * tied + [""] * (len(rows) - tied)
    assert [row.name for row in rows[:tied]] == [run.policy for run in example.tied]
    assert str(example).count("(tied)") == tied == 4
    two = compare(example.instance, ["mc-sf", "area"])
    assert [row.mark for row in comparison_table(two).rows] == ["best", ""]


def test_references_stand_below_the_others_under_intervals_only():
    requests = family("uniform", n=40, seed=1, rate=6, seconds_per_step=1e-3)
    for clock in ({}, {"clock": "llama-2-7b-a100"}):
        known = {"intervals": "relative:0.5", **clock}
        compared = compare(requests, ["h-sf", "a-min", "a-max", "h-sf+skip"], **known)
        # In steps nothing is as good as knowing the outputs.
        assert clock or compared["h-sf"].mean_latency < compared.best.mean_latency
        assert compared.references == ["h-sf", "h-sf+skip"]
        assert compared.best.policy in ("a-min", "a-max")
        assert repr(compared).endswith(f"best {compared.best.policy!r}>")
        table = clock_table(compared) if clock else comparison_table(compared)
        assert [row.mark for row in table.rows] == ["best", "", REFERENCE, REFERENCE]
        assert "a reference knows the outputs" in table.caption
        marked = {each["policy"]: each.get("reference") for each in compared.to_dict()["policies"]}
        assert marked == {"h-sf": True, "a-min": None, "a-max": None, "h-sf+skip": True}
    alone = compare(requests, ["h-sf", "area"])
    assert not alone.references
    assert not any("reference" in entry for entry in alone.to_dict()["policies"])


@pytest.mark.parametrize("clock", [{}, {"clock": "affine:0.01,0.001"}], ids=["steps", "clock"])
def test_deadlines_met_are_shown_where_the_trace_has_them(clock):
    requests = family("uniform", n=30, seed=1, rate=0.2)
    assert "deadlines" not in str(compare(requests, ["area", "fcfs"]))
    timed = requests.replace(deadlines=requests.arrivals + 60, seconds_per_step=0.05)
    compared = compare(timed, ["area", "fcfs"], **clock)
    table = clock_table(compared) if clock else comparison_table(compared)
    column = table.columns.index("deadlines met") - 1
    assert "deadlines met of 30" in table.caption
    for row in table.rows:
        run = compared[row.name]
        ends = run.completions if clock else 0.05 * run.schedule.completions
        met = sum(end <= 0.05 * last for end, last in zip(ends, timed.deadlines, strict=True))
        assert row.cells[column] == (met, str(met))
        assert 0 < met < 30


def test_the_run_time_is_not_taken_for_a_latency(example):
    assert "seconds" not in comparison_table(example).columns
    assert comparison_table(example).columns[-1] == "run time, s"


def test_a_policy_that_is_told_outputs_is_not_the_best_without_saying_so():
    requests = family("uniform", n=60, seed=1, rate=12, seconds_per_step=1e-3)
    engine = "vllm+learned" if SERVING else "vllm-v0"
    compared = compare(requests, ["area", "mixed", engine], clock="affine:0.03,1e-5")
    assert compared.best.policy == "area"
    able = compared.best_deployable
    assert able.knows == "nothing"
    marks = {row.name: (row.mark, row.cells[0][1]) for row in clock_table(compared).rows}
    assert marks["area"] == ("best, told outputs", "outputs")
    assert marks[able.policy] == ("best deployable", "nothing")
    content = compared.to_dict()
    assert (content["best"], content["best_deployable"]) == ("area", able.policy)
    assert {each["policy"]: each["knows"] for each in content["policies"]} == {
        "area": "outputs",
        "mixed": "nothing",
        engine: "nothing",
    }
    first, second = compared.headline
    assert first.startswith(f"Of the policies that can be deployed, {able.policy} has the least ")
    assert second.startswith("area, told every true output, has ")
    share = 1 - compared["area"].mean_latency / able.mean_latency
    assert second.endswith(f" s: {share:.1%} less.")
    told = compare(requests, ["fcfs", "area"])
    assert told.best_deployable is told.to_dict()["best_deployable"] is None
    assert told.headline[0].endswith("none can be deployed.")
    hint = told.headline[1].split()[1]
    assert compare(requests, ["fcfs", "area", hint]).best_deployable.policy == hint
    assert list(told.to_pandas()["knows"]) == ["outputs", "outputs"]
