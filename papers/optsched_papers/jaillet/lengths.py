"""Jaillet Figure 6: the lengths of conversations, from the two families that have its moments."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from optsched_papers.claims import beside
from optsched_papers.distributions import Printed, distributions, draw_distributions
from optsched_papers.target import Computations, Outcome, Study

_REQUESTS = 10_000
_PRINTED = {
    "prompts": Printed(mean=40.62, median=11),
    "outputs": Printed(mean=85.32, median=45),
}
# What Robust, Section 6, prints of 2,000 requests of the same data.
_OF_ROBUST = {"prompts": Printed(variance=4_961), "outputs": Printed(variance=9_702)}
_OURS, _OTHER = "chat-words", "chat"


def _figure_6(study: Study) -> Outcome:
    found = {
        workload: distributions(study, workload, _PRINTED, n=_REQUESTS)
        for workload in (_OURS, _OTHER)
    }
    claims = list(found[_OURS].claims)
    claims += beside(
        replace(claim, label=f"{_OTHER}: {claim.label}") for claim in found[_OTHER].claims
    )
    for workload in found:
        also = distributions(study, workload, _OF_ROBUST, n=_REQUESTS).claims
        claims += beside(
            replace(claim, label=f"{workload}: {claim.label} that Robust prints") for claim in also
        )
    parts = [
        each.table.assign(lengths=each.table["lengths"] + f" of {workload}")
        for workload, each in found.items()
    ]
    settings = {**found[_OURS].settings, "workload": [_OURS, _OTHER]}
    return Outcome(pd.concat(parts, ignore_index=True), claims, settings)


TARGETS: Computations = {"jaillet-fig-6": (_figure_6, draw_distributions)}
