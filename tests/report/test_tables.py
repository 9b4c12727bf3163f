"""Tables say what is proven, and show names as they are."""

from __future__ import annotations

import re

from optsched import Instance, compare, family
from optsched._internal.views import html
from optsched.policies import PriorityPolicy
from optsched.report.tables import clock_table, comparison_table, facts_table, to_text


def test_gaps_are_rounded_up_and_bounds_down(example):
    lines = to_text(comparison_table(example)).splitlines()
    best = next(line for line in lines if "mc-sf-total" in line)
    assert best.split()[1:3] == ["45", "4.5%"]  # the gap is 0.0444
    bound = next(line for line in lines if "proven bound" in line)
    assert float(bound.split()[2]) <= example.bound.value


def test_a_name_is_no_markup():
    policy = PriorityPolicy("[red]mine[/red]", "", lambda instance: instance.areas)
    table = comparison_table(compare(Instance([1], [2], memory=3), [policy]))
    assert "[red]mine[/red]" in to_text(table)


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
    assert page.count("font-weight: bold") == len(comparison_table(example).columns)
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
