"""Latencies of requests, as their start steps give them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.exact import exact_dot

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance


class Started:
    """Requests of an instance with their start steps."""

    instance: Instance
    starts: IntArray

    @property
    @abstractmethod
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step."""

    @property
    @abstractmethod
    def utilisation(self) -> float:
        """Tokens held on average over steps 1 to the makespan, as a share of all memory."""

    @property
    def completions(self) -> IntArray:
        """Step :math:`c_i = p_i + o_i` at which each request makes its last token, shape (n,)."""
        return self.starts + self.instance.outputs

    @property
    def latencies(self) -> IntArray:
        """End-to-end latency :math:`c_i - a_i` of each request in steps, shape (n,)."""
        return self.completions - self.instance.arrivals

    @property
    def first_token_latencies(self) -> IntArray:
        """Time to first token :math:`p_i + 1 - a_i` of each request in steps, shape (n,)."""
        return self.starts + 1 - self.instance.arrivals

    @property
    def total_latency(self) -> int:
        """Sum of the latencies (the papers' TEL) in steps."""
        return int(self.latencies.sum())

    @property
    def weighted_latency(self) -> float:
        """Sum of weight times latency in steps; the total latency where there are no weights."""
        weights = self.instance.weights
        return float(self.total_latency if weights is None else exact_dot(weights, self.latencies))

    @property
    def mean_latency(self) -> float:
        """Mean latency (the papers' AEL) in steps."""
        return self.total_latency / len(self.instance)

    @property
    def makespan(self) -> int:
        """Last completion step."""
        return int(self.completions.max())

    def latency_percentiles(self) -> dict[str, float]:
        """Return the percentiles "p50", "p90" and "p99" of the latency in steps, interpolated."""
        values = np.percentile(self.latencies, [50, 90, 99])
        return dict(zip(("p50", "p90", "p99"), values.tolist(), strict=True))

    def summary(self) -> dict[str, Any]:
        """Return latencies, memory and missed deadlines, ready for a table or for JSON."""
        found: dict[str, Any] = {
            "total_latency": self.total_latency,
            "mean_latency": self.mean_latency,
            **{f"{key}_latency": value for key, value in self.latency_percentiles().items()},
            "mean_ttft": float(self.first_token_latencies.mean()),
            "makespan": self.makespan,
            "peak_memory": self.peak_memory,
            "utilisation": self.utilisation,
        }
        if self.instance.weights is not None:
            found["weighted_latency"] = self.weighted_latency
        if self.instance.deadlines is not None:
            found["missed_deadlines"] = int((self.completions > self.instance.deadlines).sum())
        return found
