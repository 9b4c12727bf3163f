"""All targets by name: their texts from `targets.toml`, their computations from the modules."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from optsched_papers.bf_io import energy as bf_io_energy
from optsched_papers.bf_io import figures as bf_io_figures
from optsched_papers.bf_io import theorems as bf_io_theorems
from optsched_papers.fluid import (
    at_capacity,
    measured,
    memory,
    segments,
    serving,
    stability,
    theory,
)
from optsched_papers.jaillet import coupling, lengths, section_7, section_8
from optsched_papers.jaillet import theorems as jaillet_theorems
from optsched_papers.robust import appendix as robust_appendix
from optsched_papers.robust import figures as robust_figures
from optsched_papers.robust import theorems as robust_theorems
from optsched_papers.sorted_f import figures as sorted_f_figures
from optsched_papers.sorted_f import proof as sorted_f_proof
from optsched_papers.sorted_f import relaxation as sorted_f_relaxation
from optsched_papers.sorted_f import theorems as sorted_f_theorems
from optsched_papers.target import Computations, Draw, Target, bars, lines

_COMPUTATIONS: Computations = {
    **section_7.TARGETS,
    **lengths.TARGETS,
    **section_8.TARGETS,
    **coupling.TARGETS,
    **jaillet_theorems.TARGETS,
    **measured.TARGETS,
    **serving.TARGETS,
    **memory.TARGETS,
    **stability.TARGETS,
    **theory.TARGETS,
    **segments.TARGETS,
    **at_capacity.TARGETS,
    **robust_figures.TARGETS,
    **robust_theorems.TARGETS,
    **robust_appendix.TARGETS,
    **sorted_f_figures.TARGETS,
    **sorted_f_theorems.TARGETS,
    **sorted_f_proof.TARGETS,
    **sorted_f_relaxation.TARGETS,
    **bf_io_figures.TARGETS,
    **bf_io_theorems.TARGETS,
    **bf_io_energy.TARGETS,
}


def _drawn(kind: str, **look: Any) -> Draw:
    return lines(**look) if kind == "lines" else bars(**look)


def _targets() -> dict[str, Target]:
    texts = tomllib.loads(resources.files(__package__).joinpath("targets.toml").read_text("utf-8"))
    notes = texts.pop("notes")

    def target(
        name: str, *, panels: Any = (1, 1), remark: str = "", draw: Any = None, **text: str
    ) -> Target:
        found = _COMPUTATIONS[name]
        compute, draw = found if isinstance(found, tuple) else (found, _drawn(**draw))
        remark = remark.format_map(notes)
        return Target(name, compute=compute, draw=draw, panels=tuple(panels), remark=remark, **text)

    return {name: target(name, **text) for name, text in texts.items()}


TARGETS = _targets()
