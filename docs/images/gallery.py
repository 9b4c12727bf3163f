"""Redraw the pictures of the gallery and of capacity, each by the code above it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/gallery.md", ROOT / "serving/docs/capacity.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n!\[[^\]]*\]\(images/([\w-]+\.png)\))?", re.DOTALL)


def draw(page: Path, folder: Path) -> None:
    """Run a page and keep the figure of each block that has a picture."""
    names: dict[str, object] = {}
    for code, picture in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(code, f"{page.name}: {picture}", "exec"), names)
        if not picture:
            continue
        drawn = io.BytesIO()
        pyplot.savefig(drawn, dpi=110)
        pyplot.close("all")
        Image.open(drawn).convert("RGB").quantize(64).save(folder / picture, optimize=True)


if __name__ == "__main__":
    for page in PAGES:
        draw(page, page.parent / "images")
