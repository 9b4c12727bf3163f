"""Tables say what is proven, and show names as they are."""

from __future__ import annotations

from optsched import Instance, compare
from optsched.policies import PriorityPolicy
from optsched.report.tables import comparison_table, to_text


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
