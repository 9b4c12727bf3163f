"""What makes a schedule or a run infeasible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ViolationKind = Literal[
    "memory",
    "arrival",
    "deadline",
    "placement",
    "output",
    "overlap",
    "completion",
    "duration",
    "slots",
]


@dataclass(frozen=True)
class Violation:
    """One reason why a schedule or a run is infeasible.

    Attributes
    ----------
    kind
        "memory": more tokens are held than fit. "arrival": a request starts before it is there.
        "deadline": a request completes too late. "placement": it runs on a worker where it may
        not. Of runs also "output": an attempt makes more tokens than the output has; "overlap":
        attempts of a request, or batches, overlap; "completion": a request is completed more than
        once, or never; "duration": a batch lasts longer or shorter than the clock says; "slots": a
        worker runs too many requests.
    request, label
        Index and label of the request at fault, -1 if it is a batch or a worker; for "memory" the
        one started last among those that hold tokens at `step`.
    step, last_step
        For "memory" the first and last of consecutive overfull steps, else the start or the
        completion; on a clock the batch.
    usage, limit
        Tokens held at `step`, or the offending number itself, and its limit.
    message
        What a run, or a schedule of several workers, says of it; else empty.
    """

    kind: ViolationKind
    request: int
    label: str
    step: int
    usage: float
    limit: float
    last_step: int
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return self.message
        if self.kind == "arrival":
            return f"request {self.label} starts at step {self.step} but arrives at {self.limit}"
        if self.kind == "deadline":
            return f"request {self.label} completes at step {self.step}, due at {self.limit}"
        return (
            f"steps {self.step}..{self.last_step}: {self.usage} tokens at the first of them where "
            f"{self.limit} fit, request {self.label} being the last one started"
        )
