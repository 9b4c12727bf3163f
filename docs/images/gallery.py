"""Redraw the pictures of the gallery and of capacity, each by the code above it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/gallery.md", ROOT / "serving/docs/capacity.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n!\[[^\]]*\]\(images/([\w-]+\.png)\))?", re.DOTALL)


def figures(page: Path) -> Iterator[tuple[str, Figure]]:
    """Run a page and yield the figure of each block that has a picture, with its name."""
    names: dict[str, object] = {}
    for code, picture in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(code, f"{page.name}: {picture}", "exec"), names)
        if picture:
            yield picture, pyplot.gcf()
        pyplot.close("all")


def draw(page: Path, folder: Path) -> None:
    """Write the pictures of a page."""
    for picture, figure in figures(page):
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=110)
        Image.open(drawn).convert("RGB").quantize(64).save(folder / picture, optimize=True)


if __name__ == "__main__":
    for page in PAGES:
        draw(page, page.parent / "images")
