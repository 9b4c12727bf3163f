"""All targets by name, one module or folder per paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.reproduction.papers import robust, sorted_f

if TYPE_CHECKING:
    from optsched.reproduction.target import Target

PAPERS = (robust, sorted_f)

TARGETS: dict[str, Target] = {target.name: target for paper in PAPERS for target in paper.TARGETS}
