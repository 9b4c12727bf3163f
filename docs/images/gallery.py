"""Redraw the pictures of docs/gallery.md, each by the code above it: `docs/images/gallery.py`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from PIL import Image

PAGE = Path(__file__).parents[1] / "gallery.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n!\[[^\]]*\]\(images/([\w-]+\.png)\))?", re.DOTALL)


def draw(folder: Path) -> None:
    """Run the page and keep the figure of each block that has a picture."""
    names: dict[str, object] = {}
    for code, picture in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        exec(compile(code, f"{PAGE.name}: {picture}", "exec"), names)
        if not picture:
            continue
        drawn = io.BytesIO()
        pyplot.savefig(drawn, dpi=110)
        pyplot.close("all")
        Image.open(drawn).convert("RGB").quantize(64).save(folder / picture, optimize=True)


if __name__ == "__main__":
    draw(Path(__file__).parent)
