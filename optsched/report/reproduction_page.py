"""The page of all reproductions in a folder: verdicts, plots and claims in one file."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any

from optsched._version import __version__
from optsched.report.html import page_template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERDICTS = ("reproduced", "reproduced in shape", "not reproduced")


def render_reproductions(results: Sequence[dict[str, Any]], images: Mapping[str, bytes]) -> str:
    """Render reproductions as the text of an HTML file that needs no network.

    Parameters
    ----------
    results
        Their JSON.
    images
        The plot of each target, PNG.

    Returns
    -------
    str
        The page.

    Examples
    --------
    >>> from optsched import reproduce
    >>> found = reproduce("sorted-f-example-1", quick=True).to_dict()
    >>> page = render_reproductions([found], {"sorted-f-example-1": b""})
    >>> "<strong>1</strong> reproduced" in page
    True
    """
    short = [result["verdict"].partition(":")[0] for result in results]
    counts = Counter(short)
    return page_template("reproduction.html.j2").render(
        results=[
            result | {"holding": sum(not _failed(row["verdict"]) for row in result["rows"])}
            for result in results
        ],
        images={name: base64.b64encode(image).decode() for name, image in images.items()},
        counts={verdict: counts[verdict] for verdict in _VERDICTS if counts[verdict]},
        ranks={verdict: rank for rank, verdict in enumerate(_VERDICTS)},
        quick=any(result["quick"] for result in results),
        seed=results[0]["seed"],
        version=__version__,
    )


def _failed(verdict: str) -> bool:
    return verdict.startswith(_VERDICTS[-1])
