"""What is learned while requests come and go: outputs, trust in clients, lengths of waits."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import ceil, log, log2
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from optsched._internal.arrays import FloatArray, IntArray

_LARGEST = 2.0**20  # tokens of an output
_PER_OCTAVE = 4  # bins
#: What stands for the outputs of a bin; the smallest ones have bins of their own.
_BINS = np.unique(np.rint(2.0 ** (np.arange(20 * _PER_OCTAVE + 1) / _PER_OCTAVE)))
_EDGES = np.sqrt(_BINS[:-1] * _BINS[1:])
_OUTPUTS = _BINS.astype(np.int64)
_VALUES = _BINS.tolist()
_LOGS = np.log(_BINS)
_FIRST_WORTH = 2.0  # completed requests that knowing nothing is worth, all bins being alike
_WORTH = 4.0  # completed requests that a wider group is worth in a narrower one
_REMEMBERED = 2_000.0  # completed requests that count in a group, about
_GROUPS = 10_000  # of which the one used longest ago is forgotten
_CLAIM_ERROR = 1.0  # variance of the logarithm of a claim before any is checked
_LEAST_ERROR = 0.01  # of it, since bins are coarse
_CHECKED = 4.0  # claims that this is worth
_PER_OUTPUT = 2  # tokens of a prompt that one of an output counts as
_SMALL = 0.3  # of the mean key: what is larger waits much as by arrival
_LEAST_KEY = 1e-300  # of which there is a logarithm
_LEAST_CHANCE = 1e-9  # that a request ends
_LEAST_WAIT_S = 0.01
_MEAN_OF = 100  # keys, about

#: Seconds over which keys age, or by the load; None: they do not.
Scale = float | Literal["load"] | None


class Seen(NamedTuple):
    """What is known of a request when it arrives."""

    prompt: int
    limit: int  # tokens of its output at most
    client: Hashable = None
    priority: Hashable = 0
    turn: int = 0  # of its conversation
    claim: float | None = None  # the output that its client expects
    weight: float = 1.0  # of its client, where clients are served in turn

    @property
    def groups(self) -> tuple[Hashable, ...]:
        """The groups that it is in, from wide to narrow."""
        like = ("prompt", int(_PER_OCTAVE * log2(max(self.prompt, 1))))
        kind = (*like, self.limit.bit_length(), self.priority, min(self.turn, 3))
        own = (("client", self.client), ("client", self.client, *kind))
        return ("all", like, kind) if self.client is None else ("all", like, kind, *own)


class Expected(NamedTuple):
    """What is expected of the output of a request, when it arrives."""

    seen: Seen
    mean: int
    median: int  # on which a plan counts
    chances: tuple[float, ...] = (1.0,)  # of each output up to its limit

    @property
    def outputs(self) -> IntArray:
        """The outputs that have these chances."""
        return _OUTPUTS[: len(self.chances)]

    def left(self, made: int) -> int:
        """Return the tokens expected after so many, at least one."""
        return max(1, self.mean - made)

    def planned(self, made: int) -> int:
        """Return the tokens that a plan counts on after so many, at least one."""
        return max(1, self.median - made)


class _Record(NamedTuple):
    """What has become of a client's claims."""

    claims: float = 0.0
    mean: float = 0.0  # of logarithmic errors, and of their squares
    square: float = 0.0
    credit: float = 0.0

    @property
    def doubt(self) -> float:
        """The share of similar outputs that a claim may not rule out."""
        return 1 / (2 + self.credit)


_UNCHECKED = _Record()


class OutputLearner:
    """Expects outputs from those of requests that are complete."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, tuple[float, FloatArray]] = {}
        self._claims: dict[Hashable, _Record] = {}
        self._known: dict[Hashable, tuple[int, int, tuple[float, ...]]] = {}

    def expect(self, seen: Seen) -> Expected:
        """Return what is expected of a request."""
        like = seen.groups[-1], seen.limit, seen.claim
        if like not in self._known:  # since the last completion
            self._known[like] = self._expectation(seen)
        return Expected(seen, *self._known[like])

    def _expectation(self, seen: Seen) -> tuple[int, int, tuple[float, ...]]:
        last = max(bisect_right(_VALUES, seen.limit) - 1, 0)
        chances, worth = (np.arange(len(_BINS)) <= last) / (last + 1), _FIRST_WORTH
        for group in seen.groups:
            count, counts = self._groups.get(group, (0.0, None))
            if counts is not None:
                chances = (counts + worth * chances) / (count + worth)
            worth = _WORTH
        chances[last] += chances[last + 1 :].sum()  # outputs are cut at their limit
        chances[last + 1 :] = 0.0
        most = last
        if seen.claim is not None:
            record = self._claims.get(seen.client, _UNCHECKED)
            # A plan that counted on any claim would keep all others waiting for it.
            most = int(np.searchsorted(np.cumsum(chances), 1 - record.doubt / 2))
            chances = _believed(chances, min(seen.claim, _LARGEST), record)
        median = _VALUES[min(int(np.searchsorted(np.cumsum(chances), 0.5 - 1e-9)), most)]
        mean = max(1, ceil(min(chances @ _BINS, seen.limit) - 1e-9))
        return mean, int(median), tuple(chances[: last + 1].tolist())

    def learn(self, output: int, expected: Expected) -> None:
        """Take note of a request that is complete, of which this was expected at its arrival."""
        seen, bin_of = expected.seen, int(np.searchsorted(_EDGES, output))
        self._known.clear()
        for group in seen.groups:
            count, counts = self._groups.pop(group, (0.0, np.zeros(len(_BINS))))
            kept = min(1.0, _REMEMBERED / (count + 1))
            counts *= kept
            counts[bin_of] += 1
            self._groups[group] = count * kept + 1, counts  # used last
        while len(self._groups) > _GROUPS:
            del self._groups[next(iter(self._groups))]
        if seen.claim is not None:
            self._check(log(output / min(seen.claim, _LARGEST)), seen.client)

    def _check(self, ratio: float, client: Hashable) -> None:
        claims, mean, square, credit = self._claims.pop(client, _UNCHECKED)  # used last
        share = 1 / (min(claims, _REMEMBERED) + 1)
        mean, square = mean + (ratio - mean) * share, square + (ratio**2 - square) * share
        credit = credit + 1 if abs(ratio) < log(2) else max(0.0, credit / 2 - 1)
        self._claims[client] = _Record(claims + 1, mean, square, credit)
        while len(self._claims) > _GROUPS:
            del self._claims[next(iter(self._claims))]


def gittins(chances: Sequence[float], costs: FloatArray) -> float:
    r"""Return the Gittins index of a request that was not served yet; the least comes first.

    With an output :math:`X` that costs :math:`c(X)`, it is
    :math:`\min_x E[c(\min(X, x))] / P(X \le x)`: the cost of serving it up to an output, for each
    chance that it ends until then (Gittins 1979).
    """
    ended = np.cumsum(chances)
    spent = np.cumsum(np.asarray(chances) * costs) + (1 - ended) * costs
    some = ended > _LEAST_CHANCE
    return float((spent[some] / ended[some]).min())


def _believed(chances: FloatArray, claim: float, record: _Record) -> FloatArray:
    """Return chances in which a claim counts by the errors of those of this client alone."""
    weight = record.claims / (record.claims + _CHECKED)
    centre, own = log(claim) + weight * record.mean, max(0.0, record.square - record.mean**2)
    variance = weight * own + (1 - weight) * _CLAIM_ERROR + _LEAST_ERROR
    shift = (_LOGS - centre) ** 2 / (2 * variance)
    allowed = np.cumsum(chances) >= record.doubt  # at first no less than the median
    allowed &= chances > 0
    allowed[np.flatnonzero(chances)[-1]] = True  # whatever sums are rounded to
    believed = np.where(allowed, chances * np.exp(np.minimum(shift[allowed].min() - shift, 0)), 0.0)
    return np.asarray(believed / believed.sum())


class TokenCounters:
    """Serves clients in turn, by virtual counters of their tokens (Sheng et al., OSDI 2024).

    A request is tagged with its client's counter, which then rises by its prompt and twice its
    expected output, over its weight. The least tag is served first; a client that was away begins
    with those served last.
    """

    def __init__(self) -> None:
        self._counters: dict[Hashable, float] = {}
        self._served = 0.0

    def tag(self, seen: Seen, output: int) -> float:
        """Return the tag of a request that arrives, of which this output is expected."""
        tag = max(self._counters.pop(seen.client, 0.0), self._served)
        self._counters[seen.client] = tag + (seen.prompt + _PER_OUTPUT * output) / seen.weight
        while len(self._counters) > _GROUPS:  # longest without a request
            del self._counters[next(iter(self._counters))]
        return tag

    def serve(self, tag: float) -> None:
        """Take note that a request with this tag is served."""
        self._served = max(self._served, tag)

    def settle(self, seen: Seen, expected: int, output: int) -> None:
        """Make up for what an output differed from what was expected."""
        if seen.client in self._counters:
            self._counters[seen.client] += _PER_OUTPUT * (output - expected) / seen.weight


class Aging:
    """Lets waiting requests age, so that none waits much longer than by arrival.

    Over a scale in seconds, a key is its logarithm plus the arrival over the scale; by the load,
    the scale follows how long requests would wait by arrival. The key of a waiting request never
    changes.
    """

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._line: deque[tuple[float, int]] = deque()  # arrivals, and all work up to each
        self._came = self._left = 0  # work, in tokens times batches
        self._works: dict[Hashable, int] = {}  # of those that were not admitted yet
        self._last_s = self._virtual = self._mean = 0.0
        self._count = 0

    def arrives(
        self, request: Hashable, time: float, key: float, prompt: int, output: int
    ) -> float:
        """Return by how much later than others a request comes that arrives."""
        self._count = min(self._count + 1, _MEAN_OF)
        self._mean += (key - self._mean) / self._count
        if self._scale != "load":
            return time / self._scale if self._scale else 0.0
        wait = time - self._line[0][0] if self._line else 0.0
        self._virtual += max(time - self._last_s, 0.0) / max(wait, _LEAST_WAIT_S)
        self._last_s = max(self._last_s, time)
        self._works[request] = prompt * output + output * (output + 1) // 2
        self._came += self._works[request]
        self._line.append((time, self._came))
        return self._virtual

    def leaves(self, request: Hashable) -> None:
        """Take note that a request waits no longer."""
        self._left += self._works.pop(request, 0)
        while self._line and self._line[0][1] <= self._left:
            self._line.popleft()

    def key(self, key: float, later: float) -> float:
        """Return the key of a request that comes by so much later than others."""
        if self._scale is None:
            return key
        over = key + _SMALL * self._mean if self._scale == "load" else 1.0
        return log(max(key, _LEAST_KEY) / max(over, _LEAST_KEY)) + later
