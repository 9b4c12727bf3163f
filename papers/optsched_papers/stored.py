"""The last verdicts on all targets, as `papers/make_results.py` stored them."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from optsched_papers.claims import LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERDICTS = "verdicts.json"
#: Of a target that is newer than the last full run.
NOT_RUN: dict[str, Any] = {
    "verdict": "not run",
    "reason": "it is newer than the last full run of all targets",
    "quick": False,
    "seed": None,
    "seconds": None,
}


def last_verdicts() -> dict[str, dict[str, Any]]:
    """Return verdict, reason, seconds, and whether a quick run found it, by target."""
    text = resources.files(__package__).joinpath(VERDICTS).read_text("utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def to_store(results: Iterable[Mapping[str, Any]]) -> str:
    """Return what is stored of reproductions, from their JSON: one line per target."""
    lines = [
        f'"{each["target"]}": {json.dumps({name: each[name] for name in NOT_RUN})}'
        for each in results
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def count_labels(results: Iterable[Mapping[str, Any]]) -> str:
    """Count the verdicts of reproductions in words, the best first."""
    found = [each["verdict"] for each in results]
    counts = {label: found.count(label) for label in (*LABELS, NOT_RUN["verdict"])}
    return ", ".join(f"{count} {label}" for label, count in counts.items() if count)
