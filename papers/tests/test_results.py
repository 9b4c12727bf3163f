"""The stored verdicts and the page of results: all targets, and what a fresh run finds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_targets import quick

from optsched_papers import TARGETS
from optsched_papers.claims import LABELS, REFUTATIONS, TOLERANCES
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


def test_what_is_refuted_says_with_what_it_holds():
    for name, found in last_verdicts().items():
        assert bool(TARGETS[name].holds_if) == (found["verdict"] in REFUTATIONS), name


def test_the_page_on_reproducing_names_every_verdict_and_tolerance():
    page = (DOCS / "how-to" / "reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+)", page, re.MULTILINE)
    assert [name for name, _ in rows] == [*LABELS, *TOLERANCES]
    shares = {name: float(text.split()[0]) / 100 for name, text in rows[len(LABELS) :]}
    assert shares == pytest.approx(TOLERANCES)


@pytest.mark.parametrize("name", CHEAP)
def test_stored_verdicts_are_those_of_a_fresh_run(name):
    assert quick(name).verdict == tuple(last_verdicts()[name][key] for key in ("verdict", "reason"))


def test_the_pages_show_every_target_with_its_stored_verdict():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    stored = last_verdicts()
    assert f"last ran it: {count_labels(stored.values())}." in " ".join(page.split())
    for name, found in stored.items():
        note = " (quick)" if found["quick"] else ""
        verdict = rf"{re.escape(found['verdict'])}[^|]*{re.escape(note)}"
        line = rf"^\| \[{name}\]\((results/[a-z-]+\.md)#{name}\) \| .* \| {verdict} \|$"
        own = re.search(line, page, re.MULTILINE)
        assert own is not None, name
        text = (DOCS / own[1]).read_text(encoding="utf-8").partition(f"## {name}\n\n")[2]
        assert f": **{found['verdict']}{note}**" in text.splitlines()[0]
        assert (DOCS / "images" / "results" / f"{name}.png").stat().st_size > 1000
    assert len(list((DOCS / "images" / "results").iterdir())) == len(TARGETS)


def test_labels_of_claims_are_split_where_they_have_a_setting():
    split = run_path(str(DOCS.parent / "papers" / "make_results.py"))["split"]
    assert split("50/s: slope, as printed") == ("50/s", "slope, as printed")
    assert split("latency (no memory limit) (s)") == ("no memory limit", "latency (s)")
    assert split("latency (s)") == ("", "latency (s)")
    assert split("least, delta = 0.1, T = 200") == ("delta = 0.1, T = 200", "least")
    assert split("uniform, sorted-lp") == ("uniform", "sorted-lp")
