"""Jaillet Figure 6: the lengths of conversations, from the two families that have its moments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from optsched_papers.claims import beside
from optsched_papers.distributions import distributions
from optsched_papers.target import Outcome, Study

_REQUESTS = 10_000
_OURS, _OTHER = "chat-words", "chat"


def _figure_6(study: Study, printed: Any, by_robust: Any) -> Outcome:
    """Compare both families with what Jaillet prints, and with what Robust does."""
    found = {
        workload: distributions(study, workload, printed, n=_REQUESTS)
        for workload in (_OURS, _OTHER)
    }
    claims = list(found[_OURS].claims)
    claims += beside(
        replace(claim, label=f"{_OTHER}: {claim.label}") for claim in found[_OTHER].claims
    )
    for workload in found:
        also = distributions(study, workload, by_robust, n=_REQUESTS).claims
        claims += beside(
            replace(claim, label=f"{workload}: {claim.label} that Robust prints") for claim in also
        )
    parts = [
        each.table.assign(lengths=each.table["lengths"] + f" of {workload}")
        for workload, each in found.items()
    ]
    settings = {**found[_OURS].settings, "workload": [_OURS, _OTHER]}
    return Outcome(pd.concat(parts, ignore_index=True), claims, settings)
