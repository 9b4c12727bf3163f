"""Renew the pages of results: `python papers/make_results.py FOLDER...`.

The folders are those of `optsched reproduce all --out FOLDER`; a target is taken from the first
folder that has it, so that full runs of some stand before quick runs of all. The script writes
`results.md`, its pictures, and the verdicts that `optsched reproduce --list` shows.
"""

import io
import json
import re
import sys
import textwrap
from pathlib import Path

from PIL import Image

from optsched_papers import TARGETS
from optsched_papers.stored import VERDICTS, count_labels, to_store

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PICTURES = DOCS / "images" / "results"
WIDTH = 520  # pixels of a picture, per column of panels, at most twice
PAPERS = {
    "jaillet": "Jaillet et al.",
    "sorted-f": "Wang et al. (Sorted-F)",
    "robust": "Chen et al. (Robust)",
    "fluid": "Ao et al. (Fluid)",
    "bf-io": "BF-IO (Chen et al.)",
}

HEAD = """\
# Results

Every target of the five papers as this version last ran it: {counts}.
{kind} [Reproduce the papers](how-to/reproduce.md) says what the verdicts mean; what the papers
get wrong, in order of weight, is in the [errata](errata.md#in-order-of-weight).
`papers/make_results.py` writes this page from a folder of `optsched reproduce all`.
"""
QUICK = """\
{quick} of {all} are from quick runs (`--quick`: fewer and smaller runs), which may miss what
holds in full ones; they are marked."""


def main(folders: list[Path]) -> None:
    """Write verdicts, pictures and page."""
    found = {name: find(name, folders) for name in TARGETS}
    results = [json.loads(path.read_text("utf-8")) for path in found.values()]
    stored = HERE / "optsched_papers" / VERDICTS
    stored.write_text(to_store(results), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, path in found.items():
        (PICTURES / f"{name}.png").write_bytes(shrink(path.with_suffix(".png"), name))
    (DOCS / "results.md").write_text(page(results), encoding="utf-8")


def find(name: str, folders: list[Path]) -> Path:
    """Return the JSON of a target in the first folder that has it."""
    paths = [folder / f"{name}.json" for folder in folders]
    for path in paths:
        if path.is_file():
            return path
    raise SystemExit(f"no folder has {name}; reproduce it first")


def shrink(path: Path, name: str) -> bytes:
    """Return a picture as small as a page shows it."""
    picture, written = Image.open(path).convert("RGB"), io.BytesIO()
    width = WIDTH * min(2, TARGETS[name].panels[1])
    height = round(picture.height * width / picture.width)
    if width < picture.width:
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    picture.quantize(48).save(written, "PNG", optimize=True)
    return written.getvalue()


def page(results: list[dict]) -> str:
    """Return the page in Markdown."""
    quick = sum(each["quick"] for each in results)
    kind = QUICK.format(quick=quick, all=len(results)) if quick else "All runs are full ones."
    title, _, text = HEAD.format(counts=count_labels(results), kind=kind).partition("\n\n")
    parts = [f"{title}\n\n{textwrap.fill(text, 100, break_on_hyphens=False)}\n"]
    for prefix, paper in PAPERS.items():
        mine = [each for each in results if each["target"].startswith(f"{prefix}-")]
        parts.append(f"## {paper}\n\n{count_labels(mine).capitalize()}.\n")
        parts.append(overview(mine, paper))
        parts += [section(each) for each in mine]
    return "\n".join(parts)


def overview(results: list[dict], paper: str) -> str:
    """Return one line per target of a paper: place, verdict and reason."""
    lines = ["| target | place | verdict | why |", "|---|---|---|---|"]
    for each in results:
        place = each["source"].removeprefix(f"{paper}, ")
        link = f"[{each['target']}](#{each['target']})"
        label = each["verdict"] + (" (quick)" if each["quick"] else "")
        lines.append(f"| {link} | {place} | {label} | {plain(each['reason'])} |")
    return "\n".join(lines) + "\n"


def section(result: dict) -> str:
    """Return what there is of a target: plot, claims and remark."""
    name = result["target"]
    label = f"**{result['verdict']}**"
    lines = [
        f"### {name}",
        "",
        f"{result['title'][0].upper()}{result['title'][1:]}: {label}.",
        "",
        f"![{result['title']}](images/results/{name}.png)",
        "",
        "| claim | paper | ours | |",
        "|---|---|---|---|",
    ]
    lines += [claim(row) for row in result["rows"]]
    if result["remark"]:
        lines += ["", plain(result["remark"])]
    return "\n".join(lines) + "\n"


def claim(row: dict) -> str:
    """Return the line of a claim, which says whether it is one reading, or stands beside."""
    numbers = ("" if row[key] is None else f"{row[key]:.4g}" for key in ("paper", "ours"))
    found = row["verdict"].partition(":")[0]
    kind = "" if row["counts"] else "beside: "
    note = kind + ("one reading: " if row["counts"] and row["statement"] else "") + found
    return f"| {plain(row['label'])} | {' | '.join(numbers)} | {note} |"


def plain(text: str) -> str:
    """Return text that Markdown leaves as it is, but for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]<>$|])", r"\\\1", part)
        for part in parts
    )


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
