"""The page of all reproductions in a folder: verdicts, plots and claims in one file."""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from optsched.report.pages import render_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.report.interactive import Figure

_VERDICTS = ("reproduced", "reproduced in shape", "not reproduced")


def render_reproductions(
    results: Sequence[dict[str, Any]],
    images: Mapping[str, bytes],
    plots: Mapping[str, list[Figure]],
) -> str:
    """Return the page of reproductions, from their JSON, PNG images and plots by target."""
    short = [result["verdict"].partition(":")[0] for result in results]
    counts = Counter(short)
    return render_page(
        "page.html.j2",
        "papers",
        results=[
            result | {"holding": sum(not _failed(row["verdict"]) for row in result["rows"])}
            for result in results
        ],
        images={name: base64.b64encode(image).decode() for name, image in images.items()},
        panels={
            result["target"]: [
                (f"{result['target']}-{number}", panel["layout"]["meta"]["caption"])
                for number, panel in enumerate(plots.get(result["target"], []))
            ]
            for result in results
        },
        figures={
            f"{target}-{number}": panel
            for target, panels in plots.items()
            for number, panel in enumerate(panels)
        },
        policies=_recurring(plots),
        counts={verdict: counts[verdict] for verdict in _VERDICTS if counts[verdict]},
        ranks={verdict: rank for rank, verdict in enumerate(_VERDICTS)},
        quick=any(result["quick"] for result in results),
        seed=results[0]["seed"],
    )


def _recurring(plots: Mapping[str, list[Figure]]) -> list[str]:
    """Return the policies that are plotted, in the order of their names."""
    from optsched.cluster.routing import ROUTINGS
    from optsched.policies import POLICIES

    known = {*POLICIES, *ROUTINGS}
    drawn = {
        trace["meta"]
        for panels in plots.values()
        for panel in panels
        for trace in panel["data"]
        if "meta" in trace
    }
    return sorted(name for name in drawn if re.split("[,: ]", name)[0] in known)


def _failed(verdict: str) -> bool:
    return verdict.startswith(_VERDICTS[-1])
