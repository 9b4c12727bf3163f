"""All targets by name, one module or folder per paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.papers import bf_io, fluid, jaillet, robust, sorted_f

if TYPE_CHECKING:
    from optsched.papers.target import Target

PAPERS = (jaillet, fluid, robust, sorted_f, bf_io)

TARGETS: dict[str, Target] = {target.name: target for paper in PAPERS for target in paper.TARGETS}
