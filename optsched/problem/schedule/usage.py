"""Tokens held over time, rebuilt from start steps alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.room import require_room
from optsched.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray


class Usage:
    """Tokens that some requests hold together, as pieces of steps over which they only grow."""

    def __init__(self, starts: IntArray, prompts: IntArray, outputs: IntArray) -> None:
        self.starts, self.completions = starts, starts + outputs
        begins, ends = starts + 1, self.completions + 1
        steps = np.concatenate([begins, ends])
        active = np.concatenate([np.ones_like(begins), -np.ones_like(ends)])
        offset = prompts - starts  # a request that is active at step t holds offset + t
        offsets = np.concatenate([offset, -offset])
        order = np.argsort(steps, kind="stable")
        self.first, index = np.unique(steps[order], return_index=True)
        last = np.append(index[1:], len(order)) - 1
        active = np.cumsum(active[order])[last]
        self.tokens = (np.cumsum(offsets[order])[last] + active * self.first)[:-1]
        self.active, self.lengths = active[:-1], np.diff(self.first)

    @property
    def peak(self) -> int:
        """Largest number of tokens held at any step."""
        return int((self.tokens + self.active * (self.lengths - 1)).max())

    def at(self, steps: IntArray) -> IntArray:
        """Return the tokens held at some steps."""
        piece = np.searchsorted(self.first, steps, side="right")
        tokens, active = (np.concatenate([[0], part, [0]]) for part in (self.tokens, self.active))
        held: IntArray = tokens[piece] + active[piece] * (steps - np.append(0, self.first)[piece])
        return held

    def profile(self) -> IntArray:
        """Return the tokens held at every step from 0 to the last completion."""
        first, lengths = self.first, self.lengths
        if first[0] < 1:
            raise ScheduleError(f"a request starts at step {first[0] - 1}, before time zero")
        advice = "use longer steps, or read peak_memory and plot, which need none"
        require_room(first[-1], 40, "steps of a schedule", advice, ScheduleError)
        inside = np.arange(first[-1] - first[0]) - np.repeat(first[:-1] - first[0], lengths)
        usage = np.repeat(self.tokens, lengths) + np.repeat(self.active, lengths) * inside
        return np.concatenate([np.zeros(first[0], dtype=np.int64), usage])

    def overfull(self, limit: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs of overfull steps: first, last, tokens at the first, last one to start."""
        first, tokens, active = self.first, self.tokens, self.active
        over = np.flatnonzero(tokens + active * (self.lengths - 1) > limit)
        if not len(over):
            return
        # Within a piece usage only grows: the overfull steps are its end, from `entry` on.
        entry = first[over] + np.maximum(0, (limit - tokens[over]) // active[over] + 1)
        leave = first[over] + self.lengths[over] - 1
        new_run = np.ones(len(over), dtype=bool)
        new_run[1:] = entry[1:] > leave[:-1] + 1
        begin = np.flatnonzero(new_run)
        end = np.append(begin[1:], len(over)) - 1
        by_start = np.argsort(self.starts, kind="stable")
        starts = self.starts[by_start]
        for run_begin, run_end in zip(begin.tolist(), end.tolist(), strict=True):
            step, piece = int(entry[run_begin]), over[run_begin]
            usage = int(tokens[piece] + active[piece] * (step - first[piece]))
            # Walk back from the last request started before this step to one still active.
            rank = int(np.searchsorted(starts, step)) - 1
            while self.completions[by_start[rank]] < step:
                rank -= 1
            yield step, int(leave[run_end]), usage, int(by_start[rank])
