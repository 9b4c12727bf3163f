"""Policies look the same in every plot, and apart from each other."""

from __future__ import annotations

import itertools

import pytest

from optsched.comparison.comparing import UNDER_INTERVALS
from optsched.policies import BASIC
from optsched.report.style import legend_above, line_styles, prepare


@pytest.mark.parametrize(
    "names",
    [
        ["area", "fcfs", "mixed", "vllm", "mine", "yours"],
        ["wait", "nested-wait", "vllm", "sarathi", "mixed", "mine"],
        UNDER_INTERVALS,
    ],
)
def test_policies_that_are_compared_differ_in_colour(names):
    assert len({style.colour for style in line_styles(names)}) == len(names)


def test_policies_keep_their_look_whatever_stands_beside_them():
    names = [*BASIC, "vllm", "mixed", "rolling", "sorted-lp", "lp-swap", "a-min", "area-lower"]
    together = dict(zip(names, line_styles(names), strict=True))
    for name in names:
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


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize("length", [4, 11, 17, 23])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_legends_take_no_more_columns_than_fit_a_panel(panels, length, count):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, panels, squeeze=False, figsize=(4.6 * panels, 3.3), layout="constrained"
    )
    for ax in axes.flat:
        for index in range(count):
            prepare(ax).plot([0, 1], [0, index], label=f"{index}".ljust(length, "x"))
        legend_above(ax)
    figure.canvas.draw()
    boxes = [ax.get_legend().get_window_extent() for ax in axes.flat]
    assert all(box.x1 <= 1.02 * figure.bbox.width for box in boxes)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert min(ax.get_window_extent().width for ax in axes.flat) > 0.7 * figure.bbox.width / panels
