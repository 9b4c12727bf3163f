"""All targets by name, as `targets.toml` has them."""

from __future__ import annotations

import tomllib
from functools import partial
from importlib import import_module, resources
from typing import Any

from optsched_papers.target import Target, side_by_side


def _function(of: Any) -> Any:
    """Return the function of a name, or of a name with arguments, or that draws one per panel."""
    if isinstance(of, list):
        return partial(side_by_side, draws=[_function(each) for each in of])
    given = {"of": of} if isinstance(of, str) else dict(of)
    module, _, name = given.pop("of", "target.lines").rpartition(".")
    function = getattr(import_module(f"{__package__}.{module}"), name)
    return partial(function, **given) if given else function


def _targets() -> dict[str, Target]:
    texts = tomllib.loads(resources.files(__package__).joinpath("targets.toml").read_text("utf-8"))
    notes, papers = texts.pop("notes"), texts.pop("papers")

    def target(
        name: str,
        *,
        compute: Any,
        draw: Any,
        panels: Any = (1, 1),
        remark: str = "",
        read: str = "",
        **text: str,
    ) -> Target:
        of_paper = (each["read"] for paper, each in papers.items() if name.startswith(paper))
        version = read or next(of_paper)
        text |= {"remark": remark.format_map(notes), "version": version}
        compute, draw = _function(compute), _function(draw)
        return Target(name, compute=compute, draw=draw, panels=tuple(panels), **text)

    return {name: target(name, **text) for name, text in texts.items()}


TARGETS = _targets()
