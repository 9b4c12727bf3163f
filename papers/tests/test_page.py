"""The page of reproductions: plots where there are any, pictures in any case, text as text."""

from __future__ import annotations

import json
import re

import pytest

from optsched_papers.folder import render_reproductions


def result(name, **changes):
    return {
        "target": name,
        "title": "what it shows",
        "source": "somebody, Fig. 1",
        "version": "v1",
        "holds_if": "",
        "verdict": "reproduced",
        "qualified": "reproduced, after mending",
        "reason": "",
        "rows": [],
        "remark": "",
        "quick": False,
        "seed": 0,
        "seconds": 1.0,
    } | changes


@pytest.fixture
def panel():
    trace = {"type": "scatter", "x": [1, 2], "y": [3, 4], "name": "mc-sf", "meta": "mc-sf"}
    bound = trace | {"name": "bound", "meta": "bound"}
    layout = {"meta": {"caption": "a < b"}, "xaxis": {"title": {"text": ""}}, "showlegend": True}
    return {"data": [trace, bound], "layout": layout | {"yaxis": {"title": {"text": ""}}}}


def test_a_target_has_a_place_for_each_panel_and_its_picture(panel):
    results, images = [result("one"), result("two")], {"one": b"1", "two": b"2"}
    page = render_reproductions(results, images, {"one": [panel, panel]})
    assert re.findall(r'class="plot" id="(.*?)"', page) == ["one-0", "one-1"]
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page).group(1))
    assert figures == {"one-0": panel, "one-1": panel}
    assert re.findall('<img src="data:image/png;base64,(.*?)"', page) == ["MQ==", "Mg=="]
    assert page.count("<h3>a &lt; b</h3>") == 2


def test_policies_can_be_picked_and_nothing_else(panel):
    page = render_reproductions([result("one")], {"one": b""}, {"one": [panel]})
    assert re.findall(r'<option value="(.+?)">', page) == ["mc-sf"]


def test_backticks_in_remarks_are_code_and_the_rest_is_text():
    page = render_reproductions([result("one", remark="`mc-sf` is <b>& `<i>`")], {"one": b""}, {})
    assert "<code>mc-sf</code> is &lt;b&gt;&amp; <code>&lt;i&gt;</code>" in page


def test_claims_are_counted_as_in_the_verdict_where_a_statement_has_readings():
    row = {"label": "x", "paper": None, "ours": 1.0, "low": None, "high": None, "counts": True}
    kinds = (("", "in shape"), ("y", "fails: far off"), ("y", "in shape"), ("z", "fails: far off"))
    rows = [row | {"statement": statement, "verdict": said} for statement, said in kinds]
    rows.append(row | {"statement": "", "verdict": "fails: far off", "counts": False})
    page = render_reproductions([result("one", rows=rows)], {"one": b""}, {})
    assert re.findall(r"<td data-value=\"(\d)\">\1</td>", page) == ["2", "3"]
