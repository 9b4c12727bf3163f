"""The report stands alone, says what is proven, and takes user text for nothing but text."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from optsched import Cluster, Instance, PriorityPolicy, compare, family, run, solve
from optsched.report.pages import clock_page, comparison_page, make_figures, optimum_page, run_page

HOSTILE = '<script>alert("1")</script>'


class Page(HTMLParser):
    """Collects elements, and the texts of scripts, styles, table rows and everything else."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.styles, self.rows = [], [], [], []
        self.text, self.inside = "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside.append(tag)
        if tag == "script":
            self.scripts.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self.inside:
            self.scripts[-1] += data
        elif "style" in self.inside:
            self.styles.append(data)
        else:
            self.text += data
            if {"th", "td"} & set(self.inside):
                self.rows[-1][-1] += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)

    def json(self, name):
        scripts = [attributes for tag, attributes in self.elements if tag == "script"]
        return json.loads(self.scripts[[each.get("id") for each in scripts].index(name)])


@pytest.fixture(scope="module", params=["example", "stream"])
def comparison(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def page(comparison):
    return Page(comparison_page(comparison))


def test_nothing_is_loaded_from_anywhere(page):
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "data", "poster"} & set(attributes)
    assert not re.search(r"@import|url\(", "".join(page.styles))
    own = page.scripts[-1]
    assert "://" not in own
    assert "showSendToCloud: false" in own


def test_there_is_one_table_with_a_row_per_policy_and_the_bound(page, comparison):
    assert page.count("table") == 1
    _, *rows, bound = page.rows
    assert len(rows) == len(comparison)
    for row, each in zip(rows, comparison.ranked(), strict=True):
        assert row[0].startswith(each.policy)
        told = "nothing" if each.policy == "alpha-beta-clearing" else "outputs"
        assert row[1:3] == [told, f"{each.total_latency:,}"]
        first = "(best, told outputs)" in row[0] or "(tied)" in row[0]
        assert first == (each in comparison.tied)
    assert bound[0] == "proven bound"
    assert page.count("thead") == page.count("tbody") == page.count("tfoot") == 1


def test_the_answer_is_a_sentence_that_the_bound_proves(example):
    text = " ".join(Page(comparison_page(example)).text.split())
    names = ", ".join(run.policy for run in example.tied)
    assert f"{names} tie as the best with a total latency of 45 steps" in text
    two = compare(example.instance, ["mc-sf", "area"])
    text_of_two = " ".join(Page(comparison_page(two)).text.split())
    assert f"area is best with a total latency of {two.best.total_latency} steps" in text_of_two
    assert "No schedule can save more than 4.5% of it: every schedule takes at least 43 " in text


def test_a_proven_optimum_is_called_one(example):
    claimed = dataclasses.replace(example.bound, value=44.5, method="closed-form", certificate=None)
    proven = dataclasses.replace(example, bounds=(claimed,))
    text = " ".join(Page(comparison_page(proven)).text.split())
    assert "are optimal: the total latency is 45 steps, and no schedule has less" in text
    assert "closed-form" in text


def test_the_footer_says_where_the_numbers_come_from(page, comparison):
    assert comparison.instance.fingerprint in page.text
    assert "optsched" in page.text
    assert f"memory {comparison.instance.memory} tokens" in page.text


def test_results_can_be_read_back(page, comparison):
    assert page.json("comparison") == json.loads(json.dumps(comparison.to_dict()))
    assert page.json("figures") == make_figures(comparison)


@pytest.mark.slow
def test_user_text_is_escaped_everywhere():
    instance = Instance([1, 1], [2, 3], memory=9, name=HOSTILE, labels=[HOSTILE, "</script>"])
    policy = PriorityPolicy(HOSTILE, HOSTILE, lambda given: given.areas)
    comparison = compare(instance, [policy])
    text = comparison_page(comparison)
    page = Page(text)
    assert "alert(" not in page.scripts[-1]
    assert page.count("script") == 4
    assert page.rows[1][0].startswith(HOSTILE)  # as text
    assert HOSTILE not in text
    details = page.json("figures")["schedule"]["data"][-1]["customdata"]
    assert {row[0] for row in details} == {
        "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;",
        "&lt;/script&gt;",
    }
    assert page.json("figures")["schedule"]["data"][0]["meta"] == HOSTILE


def test_figures_are_what_plotly_understands(comparison):
    import plotly.graph_objects as go

    for figure in make_figures(comparison).values():
        go.Figure(figure)  # refuses what it does not know


def test_the_schedule_shows_the_best_policy_and_knows_the_others(comparison):
    traces = make_figures(comparison)["schedule"]["data"]
    assert {trace["meta"] for trace in traces if trace["visible"]} == {comparison.best.policy}
    assert {trace["meta"] for trace in traces} == {each.policy for each in comparison.schedules}


@pytest.mark.slow
def test_data_stay_below_a_megabyte_for_100_000_requests():
    random = np.random.default_rng(1)
    count = 100_000
    instance = Instance(
        random.integers(1, 1000, count),
        random.integers(1, 500, count),
        memory=16_492,
        arrivals=np.sort(random.integers(0, 10**6, count)),
        labels=[f"{'a very long label ' * 10}{request}" for request in range(count)],
    )
    figures = make_figures(compare(instance))
    assert len(json.dumps(figures)) < 1_000_000


@pytest.mark.slow
def test_the_file_is_what_is_rendered(example, tmp_path):
    example.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == comparison_page(example)


TIMED = family("uniform", n=60, seed=1, rate=6, seconds_per_step=1e-3)
CLOCK = "llama-2-7b-a100"


@pytest.fixture(scope="module")
def pages_of_results():
    """Return pages of what is no comparison in steps, by what they show."""
    known = {"intervals": "relative:0.5"}
    requests, many = (family("uniform", n=n, seed=1) for n in (20, 90))
    routed = run(requests, "fcfs", cluster=Cluster(2, 4), record_loads=True)
    return {
        "clock": clock_page(compare(TIMED, ["h-sf", "a-min", "vllm-v0"], clock=CLOCK, **known)),
        "optimum": optimum_page(solve(requests, time_limit=1)),
        "makespan": optimum_page(solve(many, time_limit=1, objective="makespan")),
        "steps": run_page(run(requests, "area")),
        "rolling": run_page(run(requests, "rolling")),
        "stopped": run_page(run(TIMED, "vllm-v0", clock=CLOCK, until=1)),
        "cluster": run_page(routed),
    }


@pytest.mark.slow("clock-figures0")
@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("clock", {"latency", "waiting", "memory", "arrivals"}),
        ("optimum", {"history", "gap", "schedule", "memory", "distribution"}),
        ("makespan", {"history", "schedule", "memory", "distribution"}),
        ("steps", {"schedule", "memory", "distribution"}),
        ("rolling", {"schedule", "memory", "distribution", "decisions"}),
        ("stopped", {"waiting", "memory", "arrivals", "batches"}),
        ("cluster", {"power", "loads"}),
    ],
)
def test_every_result_has_a_page_that_stands_alone(pages_of_results, kind, figures):
    import plotly.graph_objects as go

    page = Page(pages_of_results[kind])
    assert not {"src", "href"} & {key for _, given in page.elements for key in given}
    found = page.json("figures")
    assert set(found) == figures
    assert figures == {given["id"] for _, given in page.elements if given.get("class") == "plot"}
    for figure in found.values():
        go.Figure(figure)
        assert figure["data"]
    assert page.json("comparison")


def test_the_page_of_a_clock_says_the_load_and_sets_references_apart(pages_of_results):
    page = Page(pages_of_results["clock"])
    text = " ".join(page.text.split())
    assert "Load: " in text
    assert "of the work constant" in text
    assert "h-sf, marked as reference, knows the outputs and is never the best" in text
    names = [row[0] for row in page.rows[1:]]
    assert names[0].startswith("vllm-v0 (best)")
    assert names[-2].startswith("h-sf (reference)")
    assert names[-1] == "proven bound"
    [bars] = [each for each in page.json("figures")["latency"]["data"] if each["type"] == "bar"]
    assert bars["meta"] == ["vllm-v0", "a-min", "h-sf"]


def test_a_page_under_intervals_does_not_crown_what_knows_the_outputs():
    compared = compare(family("uniform", n=20, seed=1), intervals="relative:0.5")
    page = Page(comparison_page(compared))
    text = " ".join(page.text.split())
    assert f"{compared.best.policy} is best" in text
    assert compared.best.policy != "h-sf"
    assert "All policies may know the outputs" not in text
    names = [row[0] for row in page.rows[1:]]
    assert names[-2].startswith("h-sf (reference)")  # above the bound
    latency = page.json("figures")["latency"]
    assert latency["layout"]["yaxis"]["ticktext"][-1] == "h-sf (reference)"


def test_the_page_of_an_optimum_says_both_ends_and_where_the_gap_is(pages_of_results):
    text = " ".join(Page(pages_of_results["optimum"]).text.split())
    assert "Both ends over time" in text
    assert "By prices, which prove" in text or "no gap" in text
    assert "there are none for the makespan" in " ".join(
        Page(pages_of_results["makespan"]).text.split()
    )


def test_user_text_is_escaped_on_all_pages(tmp_path):
    instance = Instance([1, 1], [2, 3], memory=9, name=HOSTILE, labels=[HOSTILE, "</script>"])
    policy = PriorityPolicy(HOSTILE, HOSTILE, lambda given: given.areas)
    texts = [
        clock_page(compare(instance, [policy], clock="affine:0.01,0.001")),
        run_page(run(instance, policy)),
        run_page(run(instance, policy, clock="affine:0.01,0.001")),
        optimum_page(solve(instance)),
    ]
    for text in texts:
        assert HOSTILE not in text
        assert "alert(" not in Page(text).scripts[-1]
        assert Page(text).count("script") == 4


@pytest.mark.slow
def test_methods_write_the_pages(tmp_path):
    execution = run(TIMED, "area", clock=CLOCK)
    for number, result in enumerate((execution, compare(TIMED, ["area"], clock=CLOCK))):
        path = tmp_path / f"{number}.html"
        result.to_html(path)
        assert path.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
        assert [each.name for each in tmp_path.glob(".*")] == []
