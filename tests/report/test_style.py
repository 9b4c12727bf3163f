"""Policies look the same in every plot, and apart from each other."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tabled import tables

import optsched.report
from optsched import compare, family, regret
from optsched.experiments.comparison import UNDER_INTERVALS
from optsched.policies import BASIC, POLICIES
from optsched.policies.priorities import ENGINES
from optsched.report import save_figure, set_title, share_legend
from optsched.report.style import _OWN, COLOURS, UNAVOIDABLE, legend_above, line_styles, prepare
from optsched.simulate.cluster.routing import ROUTINGS

OKABE_AND_ITO = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
REGISTERED = list(dict.fromkeys([*POLICIES, *ROUTINGS, "area+window"]))
TOGETHER = [
    list(BASIC),
    list(UNDER_INTERVALS),
    list(ROUTINGS),
    [each.name for each in ENGINES],
    ["area", "fcfs", "mixed", "vllm", "mine", "yours"],
    ["wait", "nested-wait", "vllm", "sarathi", "mixed"],
    ["fcfs", "mc-sf", "sorted-f-quantile", "sorted-lp", "sorted-f", "lp-swap"],
]
# What is left of linear red, green and blue without the cones for long, middle and short waves
# (Machado et al. 2009, severity 1).
VISIONS = np.array([np.eye(3), *tables(__file__)["visions"]])
# Ottosson's OKLab, in which a distance of 1 can hardly be seen.
TO_CONES, TO_LAB = (np.array(tables(__file__)[name]) for name in ("to_cones", "to_lab"))


def linear(colour):
    shares = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    lights = sorted(linear(each) @ [0.2126, 0.7152, 0.0722] + 0.05 for each in (one, other))
    return lights[1] / lights[0]


def apart(one, other):
    """Return the distance of two colours to the eyes that see the least of it."""
    seen = [np.clip(VISIONS @ linear(each), 0, 1) for each in (one, other)]
    first, second = (100 * np.cbrt(each @ TO_CONES.T) @ TO_LAB.T for each in seen)
    return np.linalg.norm(first - second, axis=1).min()


@pytest.fixture(scope="module")
def backgrounds():
    css = Path(optsched.report.__file__).parent / "templates" / "page.css"
    found = re.findall(r"--page: (#\w{6})", css.read_text(encoding="utf-8"))
    assert len(found) == 2
    return found


def test_colours_stand_out_from_white_and_dark_pages(backgrounds):
    shown = {style.colour for style in line_styles(REGISTERED)} | {*COLOURS, UNAVOIDABLE, *_OWN}
    assert min(contrast(*pair) for pair in itertools.product(shown, backgrounds)) >= 3


def test_every_registered_policy_has_a_colour_of_its_own():
    assert len({style.colour for style in line_styles(REGISTERED)}) == len(REGISTERED)


def test_colours_are_further_apart_than_okabe_and_itos_in_all_colour_vision():
    ours, theirs = (
        min(apart(*pair) for pair in itertools.combinations(palette, 2))
        for palette in (COLOURS, OKABE_AND_ITO)
    )
    assert ours > 9.9 > theirs


def test_two_policies_differ_in_colour_to_all_eyes_or_in_dash_and_marker():
    for one, other in itertools.combinations(line_styles(REGISTERED), 2):
        if apart(one.colour, other.colour) < 7:
            assert one.dash != other.dash
            assert one.marker != other.marker


@pytest.mark.parametrize("names", TOGETHER)
def test_policies_that_meet_differ_to_all_eyes_and_in_grey_print(names):
    for one, other in itertools.combinations(line_styles({*names, "mine"}), 2):
        assert apart(one.colour, other.colour) >= 7
        assert one.dash != other.dash
        assert one.marker != other.marker


def test_policies_with_parameters_look_like_themselves_unless_both_are_there():
    assert line_styles(["alpha-greedy:0.15"]) == line_styles(["alpha-greedy"])
    plain, planned = line_styles(["vllm", "vllm:work+plan"])
    assert line_styles(["vllm:work+plan", "vllm"]) == [planned, plain]
    assert plain == line_styles(["vllm"])[0]
    assert apart(plain.colour, planned.colour) >= 7


@pytest.mark.slow("pdf")
@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_figures_are_written_in_any_format_with_fonts_that_publishers_take(kind, tmp_path, ax):
    path = tmp_path / f"figure.{kind}"
    save_figure(ax, path)
    begin = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert path.read_bytes().startswith(begin)
    assert b"/Type3" not in path.read_bytes()
    if kind == "png":
        with Image.open(path) as image:
            assert image.size[0] == pytest.approx(300 * ax.figure.get_figwidth(), abs=1)


def test_a_figure_says_what_made_it(tmp_path):
    instance = family("uniform", n=9, seed=1)
    drawn = compare(instance, ["area"], seed=3).plot()
    save_figure(drawn, tmp_path / "figure.png", dpi=30, foot=True)
    with Image.open(tmp_path / "figure.png") as image:
        said = image.text["Description"]
    call = "Call: compare(<Instance 'uniform': 9 requests, memory 100>, ['area'], seed=3)"
    for line in (call, f"Requests: uniform, SHA-256 {instance.fingerprint}", "Seed: 3"):
        assert line in said
        assert line in drawn.figure.get_supxlabel()


def test_the_foot_of_a_figure_names_all_instances_within_its_width(tmp_path):
    several = [family("uniform", n=9, seed=seed) for seed in range(3)]
    for result in (compare(several, ["area", "fcfs"]), regret(several, ["area", "fcfs"])):
        drawn = result.plot()
        save_figure(drawn, tmp_path / "figure.png", dpi=30, foot=True)
        (foot,) = (each for each in drawn.figure.texts if each.get_text().startswith("Made by"))
        edge = foot.get_window_extent().x1
        assert edge < drawn.figure.bbox.x1
        assert f"Call: {result.called[:12]}" in foot.get_text()
    first = compare(several, ["area", "fcfs"]).plot()
    save_figure(first, tmp_path / "figure.png", dpi=30, foot=True)
    assert "uniform, SHA-256" in first.figure.get_supxlabel()


@pytest.mark.parametrize("alike", [True, False])
def test_panels_that_say_the_same_share_a_legend(alike):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for ax, name in zip(axes, ("one", "one" if alike else "other"), strict=True):
        prepare(ax).plot([0, 1], label=name)
        legend_above(ax, "panel")
    share_legend(figure)
    set_title(figure, "both")
    figure.draw_without_rendering()
    assert len(figure.legends) == alike
    titles = [ax.get_title("left") or ax.get_legend().get_title().get_text() for ax in axes]
    assert titles == ["panel", "panel"]
    said = figure.legends[0].get_title().get_text() if alike else figure.get_suptitle()
    assert said == "both"


@pytest.mark.parametrize("when", ["before", "after"])
def test_titles_stand_above_the_legend(when):
    ax = prepare(None)
    ax.plot([0, 1], label="one")
    if when == "before":
        ax.set_title("the title")
    legend_above(ax)
    if when == "after":
        set_title(ax, "the title")
    ax.figure.draw_without_rendering()
    legend = ax.get_legend()
    assert legend.get_title().get_text() == "the title"
    assert ax.get_title() == ""
    title, label = (
        part.get_window_extent() for part in (legend.get_title(), legend.get_texts()[0])
    )
    assert title.y0 >= label.y1 - 1
    assert ax.figure.bbox.y1 >= title.y1


def test_policies_keep_their_look_whatever_stands_beside_them():
    names = [*BASIC, "vllm", "mixed", "rolling", "sorted-lp", "lp-swap", "a-min", "area-lower"]
    together = dict(zip(names, line_styles(names), strict=True))
    for name in names:
        assert line_styles(["mine", name])[1] == together[name]


def test_there_are_looks_for_any_number_of_policies():
    styles = line_styles([f"policy {number}" for number in range(20)])
    assert len(set(styles)) == 20


def test_tint_is_lighter():
    style = line_styles(["area"])[0]
    assert style.tint > style.colour
    assert len(style.tint) == 7


@pytest.mark.slow("1-23-3", "7-4-3")
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
    figure.draw_without_rendering()
    boxes = [ax.get_legend().get_window_extent() for ax in axes.flat]
    assert all(box.x1 <= 1.02 * figure.bbox.width for box in boxes)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert min(ax.get_window_extent().width for ax in axes.flat) > 0.7 * figure.bbox.width / panels


def test_a_policy_of_ones_own_has_a_colour_that_none_of_ours_has_alone_or_beside_them():
    ours = {style.colour for style in line_styles(REGISTERED)} | {*COLOURS}
    (alone,) = line_styles(["mine"])
    for names in (
        ["mine"],
        ["mine", "yours"],
        ["area", "mine"],
        ["mine", *BASIC],
        ["mine", "vllm"],
    ):
        looks = dict(zip(names, line_styles(names), strict=True))
        assert looks["mine"].colour not in ours
        assert looks.get("yours", alone).colour not in ours
    assert line_styles(["area", "mine"])[1].colour == alone.colour
