r"""The makespan: sizes of running requests of which a full memory holds no more than one.

A running request is an item, the tokens that it holds and the steps that are left to it. Let sizes
:math:`\varphi \ge 0` be such that no set of items that can run together is larger than :math:`F`: a
dual feasible function. Requests that arrive from step :math:`a` on then need
:math:`\sum_i \sum_u \varphi(s_i + u, o_i - u) / F` more steps at least.

The best sizes are a linear program with a row for each set that can run together. A dynamic
program finds rows that are broken (`optsched.bounds.configurations`), HiGHS solves those found so
far. Sizes are the same share of the tokens in a class of items; classes get smaller and smaller, as
the program of few classes ends soon, and its rows hold for all. Rows are looked for between the
optimum of the known ones and the best sizes that hold.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.numbers import round_down
from optsched.bounds.ascent import Bound
from optsched.bounds.configurations import Problem, largest_set
from optsched.certificates.configurations import MakespanCertificate

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance

#: Tokens of a class of items, and the ratio of the steps left of the longest to the shortest.
_CLASSES = ((5, 1e9), (5, 2.0), (2, 2.0), (1, 2.0), (1, 1.2))
_BETWEEN = (0.2, 0.5, 1.0)  # shares of the way to the optimum of the rows that are known
_CLOSE = 2e-3  # between what holds and what the known rows allow
_LARGEST = 20.0  # size beside the share of the memory
_UNIT = 2**24  # of sizes in a certificate


def makespan_by_sizes(
    instance: Instance, over: Callable[[], bool], target: float = np.inf
) -> Bound:
    """Bound the makespan of one worker until it is proven, all classes are tried or it is over."""
    began = stopwatch()
    since = _since(instance)
    later = instance.arrivals >= since
    problem = Problem.of(instance.take(np.flatnonzero(later)))
    search = _Sizes.of(problem)
    for tokens, ratio in _CLASSES:
        if over() or since + search.value >= target:
            break
        search = search.improved(_classes(problem, tokens, ratio), over, target - since)
    whole = np.floor(search.sizes * _UNIT).astype(np.int64)
    largest = largest_set(problem, whole, search.copies, search.chosen)
    steps = Fraction(int(search.counts @ whole), max(int(largest), 1))
    certificate = MakespanCertificate(
        since, tuple(whole.tolist()), instance.fingerprint, since + steps
    )
    value, seconds = round_down(certificate.value), stopwatch() - began
    return Bound(value, "sizes", seconds, certificate, premises=certificate.premises)


def _since(instance: Instance) -> int:
    """Return the arrival from which on the memory-time that arrives needs the last step."""
    areas = np.cumsum(instance.areas[::-1])[::-1] / instance.memory
    return int(instance.arrivals[np.argmax(instance.arrivals + areas)])


def _classes(problem: Problem, tokens: int, ratio: float) -> IntArray:
    """Return the class of each item: those of about as many tokens and steps."""
    left = (np.log1p(problem.left) / np.log(ratio)).astype(np.int64)
    keys = np.stack([problem.tokens // tokens, left])
    _, classes = np.unique(keys, axis=1, return_inverse=True)
    return np.asarray(classes.reshape(-1))


class _Sizes(NamedTuple):
    """The best sizes that hold, and the sets of items that were found to run together."""

    problem: Problem
    counts: IntArray  # steps that requests are each item
    copies: IntArray  # requests that may be
    chosen: IntArray
    shares: FloatArray  # of the memory
    sizes: FloatArray
    rows: list[tuple[IntArray, IntArray]]

    @classmethod
    def of(cls, problem: Problem) -> _Sizes:
        """Begin with shares of the memory."""
        counts = np.zeros(len(problem.tokens), dtype=np.int64)
        np.add.at(counts, problem.place, np.repeat(problem.counts, problem.outputs))
        copies = problem.copies(np.array([np.iinfo(np.int64).max]))[0]
        chosen = np.zeros(problem.width, dtype=np.int64)
        shares = problem.tokens / problem.limit
        return cls(problem, counts, copies, chosen, shares, shares, [])

    @property
    def value(self) -> float:
        """Steps that all need."""
        return float(self.counts @ self.sizes)

    def improved(self, classes: IntArray, over: Callable[[], bool], target: float) -> _Sizes:
        """Return the best sizes by class, or the best until it is over."""
        from optsched.solvers.backends.highs import load

        best, number = self, int(classes.max()) + 1
        weights = np.bincount(classes, self.counts * self.shares)
        highs = load().Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        nothing = np.zeros(0)
        highs.addCols(
            number, -weights, np.zeros(number), np.full(number, _LARGEST), 0, *[nothing] * 3
        )

        def add(items: IntArray, times: IntArray) -> None:
            row = np.bincount(classes[items], times * self.shares[items], number)
            some = np.flatnonzero(row)
            highs.addRow(-np.inf, 1.0, len(some), some.astype(np.int32), row[some])

        for row in self.rows:
            add(*row)
        while not over() and best.value < target:
            highs.run()
            most = -highs.getInfo().objective_function_value
            if most - best.value <= _CLOSE * most:
                break
            found = np.array(highs.getSolution().col_value)[classes] * self.shares
            for share in _BETWEEN:
                tried = share * found + (1 - share) * best.sizes
                largest = largest_set(self.problem, tried, self.copies, self.chosen)
                row = np.unique(self.chosen[self.chosen >= 0], return_counts=True)
                self.rows.append(row)
                add(*row)
                if (tried := tried / largest) @ self.counts > best.value:
                    best = best._replace(sizes=tried)
        return best
