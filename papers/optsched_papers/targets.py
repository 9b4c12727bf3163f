"""All targets by name: their texts from `targets.toml`, their computations from the modules."""

from __future__ import annotations

import tomllib
from importlib import import_module, resources
from typing import Any

from optsched_papers.target import Computations, Target, bars, lines

_MODULES = {
    "jaillet": ("section_7", "lengths", "section_8", "coupling", "theorems"),
    "fluid": ("measured", "serving", "memory", "stability", "theory", "segments", "at_capacity"),
    "robust": ("figures", "theorems", "geometric", "appendix"),
    "sorted_f": ("figures", "theorems", "proof", "relaxation"),
    "bf_io": ("figures", "theorems", "energy"),
}
_KINDS = {"lines": lines, "bars": bars}


def _targets() -> dict[str, Target]:
    texts = tomllib.loads(resources.files(__package__).joinpath("targets.toml").read_text("utf-8"))
    notes, papers = texts.pop("notes"), texts.pop("papers")
    computations: Computations = {}
    for paper, modules in _MODULES.items():
        for module in modules:
            computations |= import_module(f"{__package__}.{paper}.{module}").TARGETS

    def target(
        name: str, *, panels: Any = (1, 1), remark: str = "", draw: Any = None, **text: str
    ) -> Target:
        found = computations[name]
        if isinstance(found, tuple):
            compute, draw = found
        else:
            compute, draw = found, _KINDS[draw.pop("kind")](**draw)
        version = next(each["read"] for paper, each in papers.items() if name.startswith(paper))
        text |= {"remark": remark.format_map(notes), "version": version}
        return Target(name, compute=compute, draw=draw, panels=tuple(panels), **text)

    return {name: target(name, **text) for name, text in texts.items()}


TARGETS = _targets()
