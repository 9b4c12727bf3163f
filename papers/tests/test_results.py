"""The stored verdicts and the page of results: all targets, and what a fresh run finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_targets import quick

from optsched_papers import TARGETS
from optsched_papers.claims import LABELS
from optsched_papers.stored import count_labels, last_verdicts, to_store

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHEAP = ["sorted-f-example-1", "robust-example-8-2", "robust-lemma-8-8", "robust-theorem-5-3"]

verdicts = st.fixed_dictionaries(
    {
        "verdict": st.sampled_from(LABELS),
        "reason": st.text(),
        "quick": st.booleans(),
        "seed": st.integers(0, 9),
    }
)


@given(st.dictionaries(st.from_regex("[a-z0-9-]+", fullmatch=True), verdicts))
def test_verdicts_are_stored_as_they_are(stored):
    results = [{"target": name, "rows": [], **found} for name, found in stored.items()]
    assert json.loads(to_store(results)) == stored
    counts = re.findall(r"\d+", count_labels(stored.values()))
    assert sum(map(int, counts)) == len(stored)


def test_every_target_has_a_verdict_with_a_reason():
    stored = last_verdicts()
    assert list(stored) == list(TARGETS)
    for found in stored.values():
        assert found["verdict"] in LABELS
        assert found["reason"] or found["verdict"] in ("reproduced", "in shape")


@pytest.mark.parametrize("name", CHEAP)
def test_stored_verdicts_are_those_of_a_fresh_run(name):
    assert quick(name).verdict == tuple(last_verdicts()[name][key] for key in ("verdict", "reason"))


def test_the_page_shows_every_target_with_its_stored_verdict():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    stored = last_verdicts()
    assert f"last ran it: {count_labels(stored.values())}." in " ".join(page.split())
    for name, found in stored.items():
        note = " (quick)" if found["quick"] else ""
        label = re.escape(f"{found['verdict']}{note}")
        assert re.search(rf"^\| \[{name}\]\(#{name}\) \| .* \| {label} \|", page, re.MULTILINE)
        assert f"### {name}\n" in page
        assert (DOCS / "images" / "results" / f"{name}.png").stat().st_size > 1000
    assert len(list((DOCS / "images" / "results").iterdir())) == len(TARGETS)
