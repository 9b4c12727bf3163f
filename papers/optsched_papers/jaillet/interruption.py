"""Jaillet Theorem 6.2 for algorithms that interrupt the long request when short ones come."""

# All prompts have epsilon M tokens. The long request fills the memory at its end; a short one has
# one output token. Short ones come when the long one has run for (1 - 2 epsilon) M steps; from then
# on none fits beside it.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.problem.schedule import Schedule
from optsched.simulate import run

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance

_ROUNDS = 4096  # the most often that short ones come; the long request then starts once more


class Adversary(NamedTuple):
    """The sizes that an adversary chooses: 1 / epsilon, which divides the memory, and M."""

    inverse: int
    memory: int

    @property
    def shorts(self) -> int:
        """How many come at a time as printed, and the prompt of all requests: epsilon M."""
        return self.memory // self.inverse

    @property
    def output(self) -> int:
        """Output of the long request."""
        return self.memory - self.shorts

    @property
    def gap(self) -> int:
        """Steps that the long request runs until short ones come."""
        return self.memory - 2 * self.shorts

    @property
    def beside(self) -> int:
        """How many short ones fit beside the long one if it waits and keeps its tokens."""
        return (self.memory - self.shorts - self.gap) // (self.shorts + 1)

    def serve(self, count: IntArray | int) -> tuple[IntArray, IntArray]:
        """Return total latency and steps of so many short requests, served alone."""
        together = self.memory // (self.shorts + 1)
        full, rest = np.divmod(np.asarray(count, np.int64), together)
        latency = together * full * (full + 1) // 2 + rest * (full + 1)
        return latency, full + (rest > 0)


def short_first(instance: Instance) -> Schedule:
    """Serve the short requests when they come, and the long one once they are on their way."""
    # An algorithm that gives up the long one's tokens when they come completes all requests then.
    together = instance.replace(arrivals=np.full(len(instance), instance.arrivals[-1]))
    return Schedule(instance, run(together, "mc-sf").schedule.starts)


def paused(of: Adversary) -> int:
    """Return the least total latency with the long request's tokens kept, as the proof counts."""
    # It grants that one short request at a time runs beside them.
    one_by_one = of.shorts * (of.shorts + 1) // 2
    return one_by_one + of.output + of.shorts


def after_shorts(of: Adversary, count: IntArray | int) -> IntArray:
    """Return the total latency where so many short ones are served, and then the long request."""
    alone, steps = of.serve(count)
    return alone + of.gap + steps + of.output


def one_fewer(of: Adversary, thresholds: IntArray) -> tuple[IntArray, IntArray]:
    """Send one short request too few, and return total latencies of algorithms and of hindsight."""
    # The algorithms let the short ones, at most as many as are printed, wait for the long request.
    few = np.minimum(thresholds - 1, of.shorts)
    wait = of.output + few * of.shorts + of.serve(few)[0]
    return wait, np.minimum(wait, after_shorts(of, few))


def again(of: Adversary, thresholds: IntArray, rounds: int) -> tuple[IntArray, IntArray]:
    """Send as many short ones as it takes whenever the long request reaches the same age."""
    # A schedule that knows them runs the long request once. The first ones wait for it; the others
    # find the worker idle.
    alone, steps = of.serve(thresholds)
    online = rounds * (alone + of.gap + steps) + of.output
    return online, np.minimum(online, of.output + thresholds * of.shorts + rounds * alone)


def restarting(of: Adversary, thresholds: IntArray) -> FloatArray:
    """Return the worst ratios of algorithms that start the long request anew for so many others."""
    online, known = one_fewer(of, thresholds)
    ratios: FloatArray = online / known
    for power in range(_ROUNDS.bit_length()):
        online, known = again(of, thresholds, 2**power)
        ratios = np.maximum(ratios, online / known)
    return ratios


def weighing(of: Adversary, counts: IntArray) -> FloatArray:
    """Return the ratios of an algorithm that weighs lost steps against the wait of short ones."""
    # It starts the long request anew as long as it has lost no more steps in this way than the
    # short ones would wait in all. So many come again and again until it goes on.
    alone, steps = of.serve(counts)
    wait = counts * of.shorts
    restarts = wait // of.gap
    lost = restarts * (of.gap + steps)
    online = lost + of.output + wait + (restarts + 1) * alone
    last = lost + of.gap + steps + of.output + (restarts + 1) * alone
    ratios: FloatArray = online / np.minimum(online, np.minimum(last, online - lost))
    return ratios
