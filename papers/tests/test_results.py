"""The stored verdicts and the page of results: all targets, and what a fresh run finds."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import sys
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
DOCS = ROOT / "papers/docs"
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
        "seconds": st.floats(0, 1e4),
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
    page = (DOCS / "reproduce.md").read_text(encoding="utf-8")
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


def test_notebooks_show_the_titles_and_remarks_of_their_targets():
    found = 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        for output in outputs:
            text = "".join(output.get("text", []))
            for name in re.findall(r"^([a-z-]+-[\w-]+): .+\n  .+; .+, .+; ", text, re.MULTILINE):
                found += 1
                assert f"\n  {TARGETS[name].title}; " in text, (path.name, name)
                assert TARGETS[name].remark in text, (path.name, name)
    assert found > 5


@pytest.mark.parametrize("prefix", PAPERS)
def test_the_page_of_a_paper_names_its_version_and_reading(prefix):
    paper = PAPERS[prefix]
    errata, conventions, page = (
        " ".join((DOCS / name).read_text(encoding="utf-8").replace("arXiv ", "").split())
        for name in ("errata.md", "../../docs/conventions.md", f"results/{prefix}.md")
    )
    version = re.search(r"arXiv (\d{4}\.\d{5})", paper["read"])[1]
    assert version in errata
    assert version in conventions
    head = page.partition("## ")[0]
    assert "On later versions see the [errata](../errata.md)" in head
    for said in (paper["read"], paper["reading"][1:]):
        assert said.replace("arXiv ", "").replace("_", r"\_") in head


def test_every_sentence_on_a_later_version_says_what_was_read():
    errata = (DOCS / "errata.md").read_text(encoding="utf-8")
    assert "| read | abstracts of later versions; their texts were not read |" in errata
    for paper in PAPERS.values():
        later = paper["later"]
        assert ("abstract" in later and "not read" in later) or "was found" in later
        versions = re.findall(r"\bv\d\b", later)
        assert set(versions) <= set(re.findall(r"\bv\d\b", errata))


def test_what_is_refuted_does_not_hold_elsewhere_in_the_errata():
    text = (DOCS / "errata.md").read_text(encoding="utf-8")
    table, _, rest = text.partition("## In order of weight")[2].partition("By abstracts")
    holds = " ".join(re.search(r"\*\*The statement holds.+?\n\n", rest, re.DOTALL)[0].split())
    groups = {name: re.search(rf"{name} ([^;]+)[;.]", holds) for name in [*SHORT.values(), "BF-IO"]}
    for line in table.splitlines():
        if line.startswith("| ") and "false" in line.split(" | ")[1]:
            paper, numbers = re.match(r"\| ([\w-]+) ([^:,]+)", line).groups()
            for number in re.findall(r"\d+(?:\.\d+)*", numbers):
                listed = groups[paper]
                assert listed is None or number not in re.findall(r"\d+(?:\.\d+)*", listed[1])


def test_every_refuted_target_has_a_row_of_errata_with_its_kind_and_what_mends_it():
    text = (DOCS / "errata.md").read_text(encoding="utf-8")
    table = text.partition("## In order of weight")[2].partition("By abstracts")[0]
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


def test_pictures_of_pages_leave_series_their_colours(tmp_path, make_results):
    names = [f"alpha-greedy:0.{tenths}" for tenths in range(1, 8)]
    styles = line_styles([*names, "mc-sf"])
    ax = prepare(None)
    for place, style in enumerate(styles):
        ax.plot([0, 1, 2], [place, place + 0.5, 2 * place], **line_of(style))
    ax.figure.savefig(tmp_path / "drawn.png", dpi=160)
    pyplot.close(ax.figure)
    shown = Image.open(
        io.BytesIO(make_results["shrink"](tmp_path / "drawn.png", "jaillet-fig-5"))
    ).convert("RGB")
    pixels = {colour for _, colour in shown.getcolors(shown.width * shown.height)}
    wanted = [tuple(round(255 * each) for each in to_rgb(style.colour)) for style in styles]
    assert min(math.dist(*pair) for pair in itertools.combinations(wanted, 2)) > 10
    for colour in wanted:
        assert min(math.dist(colour, each) for each in pixels) < 5


def test_the_pages_show_every_target_with_its_stored_verdict(make_results):
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    stored = last_verdicts()
    assert f"last ran it: {count_labels(stored.values())}." in " ".join(page.split())
    groups = dict(re.findall(r"^## (.+)\n\n((?:(?!## ).*\n)+)", page, re.MULTILINE))
    lines = {}  # the rest of its line, by target, paper and verdict
    for paper, text in groups.items():
        for verdict, own in re.findall(r"^\*\*(.+)\*\*\n\n((?:.+\n)+)", text, re.MULTILINE):
            for name, link, line in re.findall(r"^(?:- )?\[(.+?)\]\((.+?)\)(.*?);?$", own, re.M):
                lines[name] = (paper, verdict.lower(), link, line)
    assert sorted(lines) == sorted(stored)
    for name, found in stored.items():
        note = " (quick)" if found["quick"] else ""
        paper, verdict, link, line = lines[name]
        assert verdict == found["verdict"], name
        assert line.endswith(note)
        held = verdict in ("reproduced", "in shape")
        assert held or line.startswith(f": {make_results['plain'](TARGETS[name].title)}")
        own, _, anchor = link.partition("#")
        assert anchor == name
        text = (DOCS / own).read_text(encoding="utf-8")
        assert text.startswith(f"# Results: {paper}\n")
        section = text.partition(f"## {name}\n\n")[2]
        assert f" **{found['verdict']}{note}**" in section.splitlines()[0]
        assert (DOCS / "images" / "results" / f"{name}.png").stat().st_size > 1000
    assert len(list((DOCS / "images" / "results").iterdir())) == len(TARGETS)


@pytest.fixture(scope="module")
def make_results():
    return run_path(str(ROOT / "papers" / "make_results.py"))


@pytest.mark.parametrize("name", ["definitions", "test_counterexamples", "test_mends"])
def test_what_checks_counterexamples_and_mends_imports_nothing_of_ours(name):
    text = (ROOT / "papers" / "tests" / f"{name}.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE))
    assert imported - sys.stdlib_module_names <= {"definitions", "numpy", "pytest"}


def test_the_overview_says_once_what_several_refutations_have_in_common(make_results):
    page, said = (DOCS / "results.md").read_text(encoding="utf-8"), 0
    for prefix, paper in PAPERS.items():
        for verdict, text in paper.get("remarks", {}).items():
            own = page.partition(f"\n## {make_results['PAPERS'][prefix]}\n")[2]
            own = own.partition("\n## ")[0]
            group = own.partition(f"**{verdict.capitalize()}**\n\n")[2].partition("\n\n**")[0]
            assert group.endswith(f"\n\n{text}")
            # What it leaves out is one of them, and of no prompts, unlike all others.
            named = set(re.findall(rf"{prefix}-[\w-]+", text))
            listed = set(re.findall(r"^- \[(.+?)\]", group, re.MULTILINE))
            assert named < listed
            of_prompts = re.compile(r"prompts?\b|\bs\b")
            for name in listed:
                about = bool(of_prompts.search(TARGETS[name].holds_if))
                assert about == (name not in named), name
            said += 1
    assert said == 1


@pytest.mark.parametrize("prefix", PAPERS)
def test_every_numbered_item_has_a_target_an_erratum_or_a_sentence(make_results, prefix):
    items, said = make_results["numbered"](prefix), PAPERS[prefix]["said"]
    assert all(items.values()), [item for item, where in items.items() if not where]
    spoken = [item for group in said for item in make_results["spread"](group)]
    assert set(spoken) == {item for item, where in items.items() if not where.startswith("[")}
    page = (DOCS / "results" / f"{prefix}.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- (.+?): (.+)$", page.partition("## Numbered items")[2], re.MULTILINE)
    rows = {
        item: where
        for groups, where in lines
        for group in groups.split("; ")
        for item in make_results["spread"](group.replace(",", ""))
    }
    # Each stands in the list, or has a section of its own.
    for item in items.keys() - rows.keys():
        name = make_results["target_of"](item, prefix)
        assert f"\n## {name}\n" in page
        assert items[item] == f"[{name}](#{name})"
    assert rows.items() <= items.items()
    # No target of a numbered item is of one that the paper does not have.
    kinds = "theorem|lemma|prop|corollary|example|fig|table"
    targets = {name for name in TARGETS if re.match(rf"{prefix}-({kinds})-", name)}
    assert targets == set(re.findall(r"^\[(.+?)\]\(#", "\n".join(items.values()), re.MULTILINE))


def test_items_are_spread_and_found_in_rows_of_errata(make_results):
    assert make_results["spread"]("Figure 1-3 EC.1") == [f"Figure {n}" for n in (1, 2, 3, "EC.1")]
    jaillet, sorted_f, fluid, bf_io = map(
        make_results["in_errata"], ("jaillet", "sorted-f", "fluid", "bf-io")
    )
    assert {"Lemma 5.5", "Lemma 5.6", "Algorithm 1", "Algorithm 2"} <= jaillet.keys()
    assert {f"Algorithm {n}" for n in (1, 2, 3, 4, 5)} <= sorted_f.keys()
    assert {"Figure 6", "Lemma 8"} <= fluid.keys()
    assert not {"Lemma 1", "Figure 1", "Figure 2"} & fluid.keys()
    # The page with the row of the item itself, where both name it.
    assert (bf_io["Lemma 1"], bf_io["Lemma 3"]) == ("errata.md", "errata-by-paper.md")


@pytest.mark.parametrize("change", ["", "title", "remark"])
def test_a_target_that_no_folder_has_keeps_its_claims(make_results, change):
    name = "robust-theorem-3-3"
    kept = make_results["found"](name, [])
    texts = {key: getattr(TARGETS[name], key) for key in make_results["TEXTS_OF"]}
    texts |= {change: "something else"} if change else {}
    own = make_results["section"](kept | texts, make_results["linked"](texts["remark"], "robust"))
    page = (DOCS / "results" / "robust.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    claims = [line for line in section.splitlines() if line.startswith(("- ", "| "))]
    assert claims == [line for line in own.splitlines() if line.startswith(("- ", "| "))] != []
    assert (own.strip() == f"## {name}\n{section}".strip()) == (not change)
    assert ("omething else" in own) == bool(change)


def row(label, ours, least=None, most=None, **changes):
    holds = (least is None or ours >= least) and (most is None or ours <= most)
    common = {"counts": True, "exact": False, "refutes": "", "statement": "", "paper": None}
    verdict = {"verdict": "in shape" if holds else "fails: far off"}
    return {"label": label, "ours": ours, "least": least, "most": most} | common | verdict | changes


@pytest.mark.parametrize(("settings", "whats"), [(1, 3), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_every_claim_has_a_place_in_a_list_or_a_table(make_results, settings, whats):
    grid = list(itertools.product(range(settings), range(whats)))
    rows = [row(f"set {at}: what {what}", 10 * at + what) for at, what in grid]
    shown = "\n".join(make_results["claims"](rows))
    assert sorted(re.findall(r"\*\*(\d+)\*\*", shown)) == sorted(f"{10 * a + b}" for a, b in grid)


def test_of_readings_one_that_holds_is_shown_or_the_nearest(make_results):
    deciding = make_results["deciding"]
    far, near = (row(f"x, {ours}", ours, least=1, statement="x") for ours in (0.2, 0.9))
    holds = row("x, 5", 5, least=1, statement="x")
    assert deciding([far, near]) == [near]
    assert deciding([far, near, holds]) == [holds]
    printed = [row(f"y, {ours}", ours, exact=True, paper=1, statement="y") for ours in (1.2, 1.1)]
    assert deciding(printed) == printed[1:]


def test_of_claims_with_one_limit_the_nearest_is_shown(make_results):
    deciding = make_results["deciding"]
    rows = [row(f"list {ours}", ours, most=2, paper=2) for ours in (1.5, 1.9, 1.1)]
    other = row("other", 1.5, most=3, paper=3)
    assert deciding([*rows, other]) == [rows[1], other]
    assert deciding([row("beside", 0.5, least=1, counts=False), *rows]) == [rows[1]]


def test_measured_failures_are_left_out_beside_a_proof(make_results):
    proof = row("proof", 2, most=1, refutes="false as stated")
    measured, holds = row("measured", 2, most=1), row("holds", 1, most=1, paper=1)
    assert make_results["deciding"]([measured, proof, holds]) == [proof, holds]
    assert make_results["deciding"]([measured, holds]) == [measured, holds]


def test_a_failing_claim_shows_what_is_printed_or_the_limit_that_it_misses(make_results):
    value = make_results["value"]
    assert value(row("", 0.9, least=1)) == "**0.9** (≥1) ✗"
    assert value(row("", 3, least=1, most=2)) == "**3** (≤2) ✗"
    assert value(row("", 3, least=1, most=2, paper=1.5)) == "**3** (1.5) ✗"
    assert value(row("", 1.5, least=1, most=2)) == "**1.5**"


def test_remarks_link_targets_of_their_page_and_pages_of_the_site(make_results):
    text = make_results["linked"]("robust-fig-1, papers/docs/errata.md, docs/cluster.md", "robust")
    pages = "[errata](../errata.md), [cluster](../../../docs/cluster.md)"
    links = f"[robust-fig-1](#robust-fig-1), {pages}"
    assert text == links


def test_labels_of_claims_are_split_where_they_have_a_setting(make_results):
    split = make_results["split"]
    assert split("50/s: slope, as printed") == ("50/s", "slope, as printed")
    assert split("latency (no memory limit) (s)") == ("no memory limit", "latency (s)")
    assert split("latency (s)") == ("", "latency (s)")
    assert split("least, delta = 0.1, T = 200") == ("delta = 0.1, T = 200", "least")
    assert split("uniform, sorted-lp") == ("uniform", "sorted-lp")
