"""Renew the pages of results: `python papers/make_results.py FOLDER...`.

The folders are those of `optsched reproduce all --out FOLDER`; a target is taken from the first
folder that has it, so that full runs of some stand before quick runs of all, and keeps what its
page shows if none has it. The script writes `papers/docs/results.md` and a page per paper, their
pictures, and the verdicts that `optsched reproduce --list` shows.
"""

import functools
import io
import itertools
import json
import math
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from optsched_papers import TARGETS
from optsched_papers.claims import FAILS, LABELS, REFUTATIONS
from optsched_papers.stored import VERDICTS, count_labels, last_verdicts, to_store

HERE = Path(__file__).parent
DOCS = HERE / "docs"
PICTURES = DOCS / "images" / "results"
TEXTS = tomllib.loads((HERE / "optsched_papers" / "targets.toml").read_text("utf-8"))
# What a reference to them would not shorten is repeated.
DROPPED = TEXTS["notes"]["dropped"]
NOTES = {key: note for key, note in TEXTS["notes"].items() if len(note.split()) > 9}
TEXTS_OF = ("title", "remark", "holds_if")
FORMS = {  # in which the errata name numbered items
    "Figure": r"Fig\.",
    "Algorithm": r"Alg\.",
    "Proposition": r"(?:Propositions?|Prop\.)",
    **{kind: f"{kind}s?" for kind in ("Theorem", "Lemma", "Corollary", "Example", "Table")},
}
HOLD = "reproduced", "in shape"  # which the overview lists by name alone
BETWEEN = "..."  # what stands between the first and the last of many alike
WIDTH = 640  # pixels of a picture, per column of panels, at most twice
PAPERS = {
    "jaillet": "Jaillet et al.",
    "sorted-f": "Wang et al. (Sorted-F)",
    "robust": "Chen et al. (Robust)",
    "fluid": "Ao et al. (Fluid)",
    "bf-io": "BF-IO (Chen et al.)",
}

HEAD = """\
Every target of the five papers as this version last ran it: {counts}. {kind} A verdict concerns
the version of the paper that its page names; [Reproduce the papers](reproduce.md) defines
verdicts and tolerances, and the [errata](errata.md) have counterexamples and what mends a refuted
statement. `optsched reproduce NAME` draws the plot of a target and lists all its claims. The files
linked below (`papers/docs/results/` in the repository) have the plots and the claims that decide:
the first that refutes a statement, or those that fail (✗), with the limit that they miss; where the
target holds, our values (bold) beside the printed ones. Of several readings they show the nearest,
of claims with one limit the closest, and of other like claims the first and the last.
"""
QUICK = """\
{quick} of {all} are from quick runs (`--quick`: fewer and smaller runs), which may miss what
holds in full ones; they are marked."""


def main(folders: list[Path]) -> None:
    """Write verdicts, pictures and pages."""
    results = [
        found(name, folders) | {key: getattr(TARGETS[name], key) for key in TEXTS_OF}
        for name in TARGETS
    ]
    (HERE / "optsched_papers" / VERDICTS).write_text(to_store(results), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, path in ((each["target"], each.get("path")) for each in results):
        if path:
            (PICTURES / f"{name}.png").write_bytes(shrink(path, name))
    write_pages(results)


def write_pages(results: list[dict]) -> None:
    """Write the overview and the page of each paper."""
    by_paper = {
        prefix: [each for each in results if each["target"].startswith(f"{prefix}-")]
        for prefix in PAPERS
    }
    (DOCS / "results.md").write_text(overview(by_paper), encoding="utf-8")
    (DOCS / "results").mkdir(exist_ok=True)
    for prefix, mine in by_paper.items():
        (DOCS / "results" / f"{prefix}.md").write_text(page(prefix, mine), encoding="utf-8")


def found(name: str, folders: list[Path]) -> dict:
    """Return what the first folder that has a target found, else what is stored of it."""
    for folder in folders:
        path = folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text("utf-8")) | {"path": path.with_suffix(".png")}
    if name not in last_verdicts():
        raise SystemExit(f"no folder has {name}; reproduce it first")
    prefix = next(each for each in PAPERS if name.startswith(f"{each}-"))
    page = (DOCS / "results" / f"{prefix}.md").read_text("utf-8")
    own = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    # Claims are lists and tables; whatever else there is comes from the texts of the target.
    shown = [part for part in own.strip().split("\n\n") if part.startswith(("- ", "| "))]
    return {"target": name, "rows": [], "shown": shown} | last_verdicts()[name]


def shrink(path: Path, name: str) -> bytes:
    """Return a picture as small as a page shows it."""
    picture, written = Image.open(path).convert("RGB"), io.BytesIO()
    width = WIDTH * min(2, TARGETS[name].panels[1])
    height = round(picture.height * width / picture.width)
    if width < picture.width:
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    # Other methods give what is seldom, such as a thin line, the colour of what is frequent.
    picture.quantize(64, Image.Quantize.FASTOCTREE).save(written, "PNG", optimize=True)
    return written.getvalue()


def overview(by_paper: dict[str, list[dict]]) -> str:
    """Return the page of all targets, by paper and verdict: one line each."""
    results = [each for mine in by_paper.values() for each in mine]
    quick = sum(each["quick"] for each in results)
    kind = QUICK.format(quick=quick, all=len(results)) if quick else "All runs are full ones."
    parts = ["# Results\n", fill(HEAD.format(counts=count_labels(results), kind=kind))]
    for prefix, mine in by_paper.items():
        parts.append(f"## {PAPERS[prefix]}\n\n[Plots and claims](results/{prefix}.md)\n")
        for verdict in LABELS:
            own = [each for each in mine if each["verdict"] == verdict]
            if own:
                parts.append(f"**{verdict.capitalize()}**\n\n{together(own, prefix)}\n")
                parts += [f"{each}\n" for each in remarks(prefix, verdict)]
    return "\n".join(parts)


def remarks(prefix: str, verdict: str) -> list[str]:
    """Return what the targets of a paper with a verdict have in common, if anything."""
    said = TEXTS["papers"][prefix].get("remarks", {}).get(verdict)
    return [plain(said)] if said else []


def together(results: list[dict], prefix: str) -> str:
    """Return the targets with a verdict: those that hold in a row, others with their titles."""
    if results[0]["verdict"] in HOLD:
        return ";\n".join(line(each, prefix) for each in results)
    titles = [plain(each["title"]) for each in results]
    return "\n".join(
        f"- {line(each, prefix, f': {title}')}" for each, title in zip(results, titles, strict=True)
    )


def line(result: dict, prefix: str, title: str = "") -> str:
    """Return a target, what its verdict rests on, and whether a quick run has it."""
    name = result["target"]
    verdict, reason = result["verdict"], result["reason"]
    named = TARGETS[name].qualified(verdict, reason).removeprefix(verdict)
    named += " (a claim that later abstracts drop)" * (DROPPED in result["remark"])
    quick = " (quick)" * result["quick"]
    return f"[{name}](results/{prefix}.md#{name}){title}{named}{quick}"


def mended(result: dict) -> bool:
    """Say whether a statement is refuted, and there is a change with which it holds."""
    return result["verdict"] in REFUTATIONS and bool(result["holds_if"])


def fill(text: str) -> str:
    """Return a paragraph in lines of a hundred characters."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), " ".join(text.split()))
    return textwrap.fill(whole, 100, break_on_hyphens=False).replace("\0", " ") + "\n"


def page(prefix: str, results: list[dict]) -> str:
    """Return the page of a paper: a section per target; what remarks have in common once."""
    reading = plain(TEXTS["papers"][prefix]["reading"])
    where = f"Unless stated otherwise, {reading[0].lower()}{reading[1:]}"
    links = "On later versions see the [errata](../errata.md); [how to read this](../results.md)."
    version = f"Read: {TEXTS['papers'][prefix]['read']}."
    parts = [f"# Results: {PAPERS[prefix]}\n", f"{version} {where} {links}\n"]
    said: dict[str, str] = {}  # in which section a note stands
    for each in results:
        name, remark, see = each["target"], each["remark"], []
        for key, note in NOTES.items():
            if note in remark and said.setdefault(key, name) != name:
                remark = remark.replace(note, "")
                see += [said[key]] * (said[key] not in see)
        remark = " ".join([*remark.split(), *([f"See {', '.join(see)}."] if see else [])])
        parts.append(section(each, linked(plain(remark), prefix)))
    parts.append("\n".join(["## Numbered items without a section\n", *others(prefix), ""]))
    return "\n".join(parts)


def others(prefix: str) -> list[str]:
    """Return the numbered items of a paper without a target, by where they are taken up."""
    items: dict[str, dict[str, list[str]]] = {}
    for item, where in numbered(prefix).items():
        if target_of(item, prefix) not in TARGETS:
            kind, number = item.split()
            items.setdefault(where, {}).setdefault(kind, []).append(number)
    named = {
        where: "; ".join(f"{kind} {', '.join(numbers)}" for kind, numbers in own.items())
        for where, own in items.items()
    }
    return [f"- {own}: {where}" for where, own in named.items()]


def numbered(prefix: str) -> dict[str, str]:
    """Return where each numbered item of a paper is taken up."""
    paper = TEXTS["papers"][prefix]
    said = {item: text for items, text in paper["said"].items() for item in spread(items)}
    items = [item for group in paper["numbered"].split("; ") for item in spread(group)]
    own = {item: linked(plain(said.get(item, "")), prefix) for item in items}
    return {item: taken_up(item, prefix) or own[item] for item in items}


def spread(items: str) -> list[str]:
    """Return the items of "Figure 1-3 5", one by one."""
    kind, *numbers = items.split()
    ends = [number.split("-") for number in numbers]
    lists = (range(int(own[0]), int(own[-1]) + 1) if own[1:] else own for own in ends)
    return [f"{kind} {number}" for own in lists for number in own]


def taken_up(item: str, prefix: str) -> str:
    """Return a link to the target of an item, or to errata that name it; else nothing."""
    name = target_of(item, prefix)
    if name in TARGETS:
        return f"[{name}](#{name})"
    page = in_errata(prefix).get(item)
    return f"[errata](../{page})" if page else ""


def target_of(item: str, prefix: str) -> str:
    """Return the name that the target of a numbered item has, if there is one."""
    kind, number = item.split()
    short = {"Figure": "fig", "Proposition": "prop"}.get(kind, kind.lower())
    return f"{prefix}-{short}-{number.lower().replace('.', '-')}"


@functools.cache
def in_errata(prefix: str) -> dict[str, str]:
    """Return the numbered items of a paper that the errata name, and on which page."""
    found = {}
    for page in ("errata.md", "errata-by-paper.md"):
        text = (DOCS / page).read_text("utf-8")
        rows = re.findall(rf"^\| {prefix} .+\n", text, re.MULTILINE | re.IGNORECASE)
        sections = re.split(r"^## ", text, flags=re.MULTILINE)
        own = "".join([*rows, *(each for each in sections if each.startswith(PAPERS[prefix]))])
        found |= {
            item: page
            for kind, form in FORMS.items()
            for numbers in re.findall(rf"\b{form} ((?:(?:EC\.)?[\d.]*\d(?:, | and |-)?)+)", own)
            for item in spread(f"{kind} {re.sub(', | and ', ' ', numbers).strip('-')}")
        }
    return found


def linked(text: str, prefix: str) -> str:
    """Link the targets of this page and the pages of the site that a text names."""
    text = re.sub(rf"\b{prefix}-[a-z]+(-\w+)+\b", lambda each: f"[{each[0]}](#{each[0]})", text)

    def page(found: re.Match[str]) -> str:
        place = ".." if found[1] else "../../../docs"
        return f"[{found[2].replace('-', ' ')}]({place}/{found[2]}.md)"

    return re.sub(r"(papers/)?docs/([\w-]+)\.md", page, text)


def section(result: dict, remark: str) -> str:
    """Return what there is of a target: plot, claims, and a remark unless the errata explain it."""
    name, title = result["target"], plain(result["title"])
    # The reason names the claims that fail, which the list shows.
    known = result["rows"] or result.get("shown")
    reason = re.split(r", not |; not ", result["reason"])[0] if known else ""
    reason = "" if result["verdict"] in REFUTATIONS else reason
    parts = [
        f"## {name}",
        f"{title[0].upper()}{title[1:]}{':' * (not title.endswith('?'))} "
        + f"**{result['verdict']}{' (quick)' * result['quick']}**"
        + f"; {plain(reason)}." * bool(reason)
        + "; [errata](../errata.md#in-order-of-weight)." * mended(result),
        f"![{name}](../images/results/{name}.png)",
        *decisive(result.get("shown", claims(deciding(result["rows"]))), result["verdict"]),
        remark * (not mended(result)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def decisive(parts: list[str], verdict: str) -> list[str]:
    """Return of claims what fails, unless the target holds; of what refutes, the first line."""
    if verdict in HOLD:
        return parts
    lists = [part for part in parts if part.startswith("- ") and "✗" in part]
    lines = [line for part in lists for line in part.split("\n") if "✗" in line]
    if verdict in REFUTATIONS:
        return lines[:1]
    listed = ["\n".join(lines)] if lines else []
    return listed + [part for part in parts if part.startswith("|") and "✗" in part] or parts


def deciding(rows: list[dict]) -> list[dict]:
    """Return claims that fail, by proof if any, or have a printed value, else two shapes."""
    counted = sorted((row for row in rows if row["counts"]), key=lambda row: (fails(row), off(row)))
    nearest: dict[object, int] = {}  # of the readings of a statement, or of the claims of a limit
    for row in counted:
        nearest.setdefault(alike(row), id(row))
    shown = [row for row in rows if row["counts"] and nearest[alike(row)] == id(row)]
    proofs = [row for row in shown if fails(row) and row["refutes"]]
    shown = [row for row in shown if row in proofs or not (proofs and fails(row))]
    return [row for row in shown if fails(row) or row["paper"] is not None] or shown[:2]


def alike(row: dict) -> object:
    """Return what a claim shares with others of which the nearest is shown."""
    limited = not (row["exact"] or fails(row) or row["paper"] is None)
    limits = row["least"], row["most"], row["paper"]
    return row["statement"] or (limits if limited else row["label"])


def off(row: dict) -> float:
    """Return by what share our value is off the printed one, or misses its limit."""
    if row["paper"] is None and not fails(row):
        return 0.0
    limits = [row["paper"]] if row["paper"] is not None else [row["least"], row["most"]]
    ours = math.inf if row["ours"] is None else row["ours"]
    return min(abs(ours - each) / (abs(each) or 1) for each in limits if each is not None)


def claims(rows: list[dict]) -> list[str]:
    """Return claims as a list and tables: what is alike in their labels is said once."""
    by_setting: dict[str, dict[str, dict]] = {}
    for row in rows:
        setting, what = split(row["label"])
        by_setting.setdefault(setting, {})[what] = row
    alike: dict[tuple[str, ...], list[str]] = {}  # settings with the same claims
    for setting, own in by_setting.items():
        alike.setdefault(tuple(own), []).append(setting)
    lines, tables = [], []
    for whats, settings in alike.items():
        if len(settings) > 1 and len(whats) > 1 and len(settings) * len(whats) > 4:
            tables.append(table(settings, whats, by_setting))
        elif len(settings) > 1 and len(whats) == 1:
            lines.append(
                listed(whats[0], settings, [by_setting[each][whats[0]] for each in settings])
            )
        else:
            lines += [listed(each, whats, list(by_setting[each].values())) for each in settings]
    return ["\n".join(f"- {line}" for line in lines), *tables]


def split(label: str) -> tuple[str, str]:
    """Split "SETTING: WHAT", "WHAT (SETTING)", "WHAT, NAME = VALUE" or "SETTING, WHAT"."""
    setting, colon, what = label.rpartition(": ")
    if colon:
        return setting, what
    for form in (r"(.+) \(([^()]+ [^()]+)\)( \(s\))?", r"(.+?), (\w+ = .+)()"):
        if found := re.fullmatch(form, label):
            return found[2], found[1] + (found[3] or "")
    setting, _, what = label.rpartition(", ")
    return setting, what


def table(settings: list[str], whats: tuple[str, ...], by_setting: dict) -> str:
    """Return a table of values by setting and what is claimed."""
    lines = [f"| | {' | '.join(map(plain, whats))} |", f"|---|{'---|' * len(whats)}"]
    values = [[value(by_setting[each][what]) for what in whats] for each in settings]
    rows = [
        f"| {plain(name)} | {' | '.join(own)} |" for name, own in zip(settings, values, strict=True)
    ]
    return "\n".join(lines + thin(rows, f"| {BETWEEN} | {' | ' * len(whats)}"))


def listed(shared: str, own: Sequence[str], rows: list[dict]) -> str:
    """Return the line of claims that share a setting, or what is claimed."""
    values = [f"{plain(what)} {value(row)}" for what, row in zip(own, rows, strict=True)]
    shown = "; ".join(thin(values, BETWEEN))
    return f"{plain(shared)}: {shown}" if shared else shown


def outcomes(text: str) -> list[bool]:
    """Say which cells of a row fail."""
    return ["✗" in cell for cell in text.split("|")]


def thin(texts: list[str], between: str) -> list[str]:
    """Return the first and the last of each run of four alike, or of three that fail."""
    runs = [(any(key), list(own)) for key, own in itertools.groupby(texts, outcomes)]
    kept = ([run[0], between, run[-1]] if len(run) > 3 - fail else run for fail, run in runs)
    return [text for own in kept for text in own]


def value(row: dict) -> str:
    """Return our value, which is bold, and the paper's, or the limit that ours misses."""
    ours = "no value" if row["ours"] is None else f"**{row['ours']:.4g}**"
    beside = "" if row["paper"] is None else f" ({row['paper']:.4g})"
    if fails(row) and row["paper"] is None and row["ours"] is not None:
        low = row["least"] is not None and row["ours"] < row["least"]
        beside = f" (≥{row['least']:.4g})" if low else f" (≤{row['most']:.4g})"
    return ours + beside + " ✗" * fails(row)


def fails(row: dict) -> bool:
    """Say whether a claim does not hold."""
    return row["verdict"].partition(":")[0] in (FAILS, *REFUTATIONS)


def plain(text: str) -> str:
    """Return text that Markdown leaves as it is, but for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]<>$|])", r"\\\1", part)
        for part in parts
    )


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
