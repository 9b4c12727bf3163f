r"""What thresholds of Nested WAIT lead to: the memory they need, by its parts (Fluid Eq. 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.views import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.fluid.nested import NestedWaitThresholds


@dataclass(frozen=True, eq=False, repr=False)
class NestedWaitPlan:
    r"""Thresholds of Nested WAIT that hold (10), and the memory they need (12).

    Attributes
    ----------
    program
        What they were chosen for.
    thresholds
        Requests per stage and batch in each segment, shape (L,).
    decays
        :math:`\theta_i` of the queue in front of each segment, shape (L,); NaN for the first,
        infinite where no queue can grow.
    slack
        Seconds by which the arrivals that fill the first segment take longer than a batch.
    delta
        Probability that the memory does not suffice at some time.
    iterations
        Iterations for which that holds.
    """

    program: NestedWaitThresholds
    thresholds: IntArray
    decays: FloatArray
    slack: float
    delta: float
    iterations: int

    @property
    def iteration_time(self) -> float:
        """Seconds of a full batch."""
        return float(self.thresholds[0] / self.program.rates[0]) - self.slack

    @property
    def memories(self) -> IntArray:
        """Tokens that a full batch holds in each segment, shape (L,)."""
        return self.program.held_tokens * self.thresholds

    @property
    def memory(self) -> int:
        """Tokens that a full batch holds: the first term of (12)."""
        return int(self.memories.sum())

    @property
    def queue_memory(self) -> int:
        """Tokens of queues as long as the thresholds: the second term of (12)."""
        return int(self.program.queue_tokens @ self.thresholds)

    @property
    def parts_by_segment(self) -> FloatArray:
        """Tokens of a full batch, of queues and of rare queues in each segment, shape (3, L)."""
        queues = self.program.queue_tokens
        rare = np.zeros(len(queues))
        rare[1:] = self._logarithm * queues[1:] / self.decays[1:]
        return np.array([self.memories, queues * self.thresholds, rare], dtype=np.float64)

    @property
    def _logarithm(self) -> float:
        events = (len(self.thresholds) - 1) * self.iterations / self.delta
        return math.log(events) if events else 0.0

    @property
    def rare_memory(self) -> int:
        r"""Tokens of longer queues, :math:`\sum_i q_i \ln((L - 1) S / \delta) / \theta_i`.

        Rounded up; the last term of (12), with the proof's :math:`L - 1` for the printed :math:`m`.
        """
        return math.ceil(float(self.parts_by_segment[2].sum()) - 1e-9)

    @property
    def safety_stock(self) -> int:
        """Tokens beyond a full batch: all that queues between segments may hold."""
        return self.queue_memory + self.rare_memory

    @property
    def memory_bound(self) -> int:
        r"""Tokens that suffice in all iterations with probability :math:`1 - \delta` (12)."""
        return self.memory + self.safety_stock

    @property
    def batch_size(self) -> int:
        """Requests in a full batch, at all stages."""
        stages = self.program.last_stages - self.program.first_stages + 1
        return int(stages @ self.thresholds)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the memory by segment; see `optsched.report.fluid.plot_nested_memory`."""
        return draw("plot_nested_memory", self, ax)

    def __repr__(self) -> str:
        return f"<NestedWaitPlan {self.thresholds.tolist()}: {self.memory_bound:,} tokens>"

    def __str__(self) -> str:
        lines = [
            f"memory that suffices for {self.iterations:,} iterations with probability "
            f"{1 - self.delta:.10g}: {self.memory_bound:,} tokens",
            f"  full batch  {self.memory:>8,}",
            f"  queues      {self.queue_memory:>8,}",
            f"  rare queues {self.rare_memory:>8,}",
            "  segment  stages     rate  threshold    tokens   decay",
        ]
        program = self.program
        for i, last in enumerate(program.last_stages.tolist()):
            stages = f"{program.first_stages[i]}-{last}"
            decay = f"{self.decays[i]:>8.4g}" if i else ""
            lines.append(
                f"  {i + 1:<5}{stages:>10}{program.rates[i]:>9.5g}{self.thresholds[i]:>11,}"
                f"{self.memories[i]:>10,}{decay}"
            )
        return "\n".join(lines)
