"""1-bit SVF: smallest volume first, where one bit is known of an output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.policies.base import PriorityPolicy

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.problem.instance import Instance


def volumes(instance: Instance, short: float) -> FloatArray:
    """Return memory-times, each output taken for the mean of its class, short or long.

    The border of the classes is a quantile of all outputs, and so are their means known.
    """
    outputs = instance.outputs
    long = outputs > np.quantile(outputs, short)
    lengths = np.full(len(outputs), outputs[~long].mean())
    if long.any():
        lengths[long] = outputs[long].mean()
    found: FloatArray = instance.prompts * lengths + lengths * (lengths + 1) / 2
    return found


@dataclass(frozen=True)
class OneBitPolicy(PriorityPolicy):
    """1-bit SVF; its parameter is the share of the outputs that are short."""

    def parsed(self, parameters: str) -> OneBitPolicy:
        """Return the policy with the parameter "SHARE"."""
        try:
            short = float(parameters)
        except ValueError:
            short = np.nan
        if not 0 < short < 1:
            raise PolicyError(
                f"policy '{self.name}:{parameters}' should read {self.name}:SHARE, with the share "
                f"of the outputs that are short, between 0 and 1, such as {self.name}:0.8"
            )
        key = partial(volumes, short=short)
        return replace(self, name=f"{self.name}:{parameters}", key=key)


ONE_BIT = OneBitPolicy(
    "svf-1bit",
    "smallest memory-time first, told which outputs are long",
    partial(volumes, short=0.5),
    source="Kong et al. 2026, where the border of the classes is open",
    reads="outputs",
)
