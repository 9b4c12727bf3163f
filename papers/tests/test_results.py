"""The stored verdicts and the page of results: all targets, and what a fresh run finds."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.colors import to_rgb
from PIL import Image
from quick_targets import quick

from optsched.report.style import line_of, line_styles, prepare
from optsched_papers import TARGETS
from optsched_papers.claims import LABELS, REFUTATIONS, TOLERANCES
from optsched_papers.stored import count_labels, last_verdicts, to_store

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAPERS = tomllib.loads((ROOT / "papers/optsched_papers/targets.toml").read_text("utf-8"))["papers"]
SHORT = {"jaillet": "Jaillet", "sorted-f": "Sorted-F", "robust": "Robust"}
#: What says of a statement that it does not hold, where it is one of a paper.
DISPUTES = re.compile(
    r"\b(wrong|false|untrue|incorrect|refute[sd]?|papers? gets?|exclude each other"
    r"|do(es)? not (hold|follow|reproduce)|fails for|cannot be right|contradicts?)\b",
    re.IGNORECASE,
)
STATEMENT = re.compile(
    r"\b(Theorem|Lemma|Corollary|Proposition|Prop\.|Fig\.|Figure|Table|Section|Alg\.) ?\[?[\d(A-Z]"
    r"|\bprinted\b|\bpapers?'?s?\b"
)
SENTENCES = re.compile(r"(?<=[.:;])\s+")
VERSION = re.compile(
    r"arXiv \d{4}\.\d{5}|\[version\]\(errata\.md\)|in (that|the) version|version of the paper"
)
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


def sections(path):
    """The sections of a page, or of what a notebook says beside its code, the first one first."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [each for each in json.loads(text)["cells"] if each["cell_type"] == "markdown"]
        text = "\n\n".join("".join(each["source"]) for each in cells)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).strip()
    return [each for each in re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE) if each]


def test_what_disputes_a_statement_has_the_version_of_the_paper_beside_it():
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    found = 0
    for path in pages:
        parts = sections(path)
        for part, sentence in ((each, said) for each in parts for said in SENTENCES.split(each)):
            if DISPUTES.search(sentence) and STATEMENT.search(sentence):
                found += 1
                assert VERSION.search(part) or VERSION.search(parts[0]), (path.name, sentence)
    assert found > 10


@pytest.mark.parametrize("prefix", PAPERS)
def test_the_page_of_a_paper_names_its_version_and_reading(prefix):
    paper = PAPERS[prefix]
    errata, conventions, page = (
        " ".join((DOCS / name).read_text(encoding="utf-8").replace("arXiv ", "").split())
        for name in ("errata.md", "conventions.md", f"results/{prefix}.md")
    )
    version = re.search(r"arXiv (\d{4}\.\d{5})", paper["read"])[1]
    assert version in errata
    assert version in conventions
    head = page.partition("## ")[0]
    for said in (paper["read"], paper["later"], paper["reading"][1:]):
        assert said.replace("arXiv ", "").replace("_", r"\_") in head


def test_every_refuted_target_has_a_row_of_errata_with_its_kind_and_what_mends_it():
    text = (DOCS / "errata.md").read_text(encoding="utf-8")
    table = text.partition("## In order of weight")[2].partition("Related work")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    for name, found in last_verdicts().items():
        if found["verdict"] in REFUTATIONS:
            prefix = next(each for each in SHORT if name.startswith(each))
            number = name.rpartition(f"{prefix}-")[2].partition("-")[2].replace("-", ".").upper()
            own = rf"{SHORT[prefix]}.*\b{re.escape(number)}(?![.\d])"
            row = next((row for row in rows if re.search(own, row[0])), None)
            assert row is not None, name
            _, kind, counterexample, mend = row
            assert kind.startswith(found["verdict"]), name
            assert counterexample
            assert mend


def test_pictures_of_pages_leave_series_their_colours(tmp_path):
    names = [f"alpha-greedy:0.{tenths}" for tenths in range(1, 8)]
    styles = line_styles([*names, "mc-sf"])
    ax = prepare(None)
    for place, style in enumerate(styles):
        ax.plot([0, 1, 2], [place, place + 0.5, 2 * place], **line_of(style))
    ax.figure.savefig(tmp_path / "drawn.png", dpi=160)
    pyplot.close(ax.figure)
    shrink = run_path(str(ROOT / "papers" / "make_results.py"))["shrink"]
    shown = Image.open(io.BytesIO(shrink(tmp_path / "drawn.png", "jaillet-fig-5"))).convert("RGB")
    pixels = {colour for _, colour in shown.getcolors(shown.width * shown.height)}
    wanted = [tuple(round(255 * each) for each in to_rgb(style.colour)) for style in styles]
    assert min(math.dist(*pair) for pair in itertools.combinations(wanted, 2)) > 10
    for colour in wanted:
        assert min(math.dist(colour, each) for each in pixels) < 5


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
        assert f" **{found['verdict']}{note}**" in text.splitlines()[0]
        assert (DOCS / "images" / "results" / f"{name}.png").stat().st_size > 1000
    assert len(list((DOCS / "images" / "results").iterdir())) == len(TARGETS)


def test_labels_of_claims_are_split_where_they_have_a_setting():
    split = run_path(str(DOCS.parent / "papers" / "make_results.py"))["split"]
    assert split("50/s: slope, as printed") == ("50/s", "slope, as printed")
    assert split("latency (no memory limit) (s)") == ("no memory limit", "latency (s)")
    assert split("latency (s)") == ("", "latency (s)")
    assert split("least, delta = 0.1, T = 200") == ("delta = 0.1, T = 200", "least")
    assert split("uniform, sorted-lp") == ("uniform", "sorted-lp")
