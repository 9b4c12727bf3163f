"""Request types of the paper's experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.workloads.request_types import RequestTypes

if TYPE_CHECKING:
    from collections.abc import Sequence


def types_of(
    prompt: int, outputs: Sequence[int], rates: Sequence[float], *, prefill_makes_token: bool
) -> RequestTypes:
    """Return types of one prompt; the paper's theory has prefills that make no token."""
    return RequestTypes(
        np.full(len(outputs), prompt),
        np.array(outputs, dtype=np.int64),
        np.array(rates, dtype=np.float64),
        prefill_makes_token,
    )
