"""Policies look the same in every plot, and apart from each other."""

from __future__ import annotations

from optsched.policies import BASIC
from optsched.report.style import line_styles


def test_policies_keep_their_look_whatever_stands_beside_them():
    together = dict(zip(BASIC, line_styles(BASIC), strict=True))
    for name in BASIC:
        assert line_styles(["mine", name])[1] == together[name]


def test_policies_differ_in_colour_and_in_grey_print():
    styles = line_styles([*BASIC, "mine"])
    for part in ("colour", "dash", "marker"):
        assert len({getattr(style, part) for style in styles}) == len(styles)


def test_there_are_looks_for_any_number_of_policies():
    styles = line_styles([f"policy {number}" for number in range(20)])
    assert len(set(styles)) == 20


def test_tint_is_lighter():
    style = line_styles(["area"])[0]
    assert style.tint > style.colour
    assert len(style.tint) == 7
