r"""Lower bounds on latency in seconds: all batches run one after another on one engine.

Charge each request :math:`q_{ik} = w_{ik} + c_0 h_{ik} / M` for its token :math:`k`, with the
seconds :math:`w_{ik}` that it adds and the tokens :math:`h_{ik}` that it holds: what a batch
charges is at most what it lasts. Spread each charge evenly over its batch; the engine then works on
all requests at a rate of at most one. With :math:`W_i = \sum_k q_{ik}` and the mean :math:`m_i` of
the times of its work, request :math:`i` completes no earlier than

.. math:: m_i + \sum_k \frac{q_{ik}}{W_i} \Bigl(\frac{t_{ik}}{2} + \sum_{k' > k} t_{ik'}\Bigr),

since its batches are apart and last :math:`t_{ik} = c_0 + w_{ik}` at least. The sum of the
:math:`m_i` is least where a machine that may be interrupted always serves the least :math:`W_i` of
those that have arrived (Goemans, 1997), by weight where latencies have weights. Several equal
workers are one machine of their speed together. What arrives in one busy period of that machine is
bounded by itself, and never by less than its latencies would be alone.

Where a batch may have at most :math:`B` requests, any mixture of :math:`c_0 / B` times their number
and the above may be charged. A preempted request prefills its prompt and tokens again in place of a
decoding; where that could be cheaper, the decoding is charged no more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.bounds.relaxation import prices_of, serve
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Storage

_TICKS_OF_BIN = 2.0**40
_SAFE = 2.0**-40  # relative allowance for all roundings, fewer than 2**12 of them in a row
PARTS = 16  # into which the constant is divided between requests and their tokens
_TICKS = 2.0**60  # ticks of time that the machine runs, at most


class LeastWork(NamedTuple):
    """The least that each request needs on a clock, shape (n,), in the clock's unit."""

    first: FloatArray  # its own seconds in the batch that makes its first token
    decode: FloatArray  # what the further tokens 1, 2, ... need is decode + growth * token
    growth: float
    decodes: FloatArray
    constant: float

    @property
    def own(self) -> FloatArray:
        """The latency of each request if it is alone."""
        return self._sum(self.first, self.decode) + self.constant * (self.decodes + 1)

    def charges(self, share: FloatArray, growth: float) -> FloatArray:
        """Return all work with a share of the constant that grows with each token."""
        d = self.decodes
        return self._sum(self.first, self.decode) + self.constant * (
            share * (d + 1) + growth * d * (d + 1) / 2
        )

    def lags(self, share: FloatArray, growth: float) -> FloatArray:
        """Return what lies between the charges and the completion, times the charges."""
        d, constant = self.decodes, self.constant
        charge = self.decode + constant * share  # of further tokens 1, 2, ...: plus
        charge_growth = self.growth + constant * growth  # times the token
        lasts, lasts_growth = constant + self.decode, self.growth
        ones, squares = (d + 1) * d / 2, d * (d + 1) * (2 * d + 1) / 6
        cubes = (d * (d + 1) / 2) ** 2
        later = lasts * d + lasts_growth * ones
        return (
            (self.first + constant * share) * ((constant + self.first) / 2 + later)
            + lasts * (charge * d * d / 2 + charge_growth * squares / 2)
            + lasts_growth * (charge * d * (d + 1) * (4 * d - 1) / 12 + charge_growth * cubes / 2)
        )

    def _sum(self, first: FloatArray, decode: FloatArray) -> FloatArray:
        return first + decode * self.decodes + self.growth * self.decodes * (self.decodes + 1) / 2


class Share(NamedTuple):
    """What a request is charged of the constant of each batch that it is in."""

    first: FloatArray  # of that which makes its first token
    growth: float  # more with each further token
    max_num_seqs: int = 0  # in a batch; 0 without a limit
    by_requests: int = 0  # sixteenths that are shared by number, the others by memory


def share_of(
    instance: Instance,
    max_num_seqs: int = 0,
    by_requests: int = 0,
    storage: Storage = "at-once",
    others: int = 0,
) -> Share:
    """Return what is charged by number, for some sixteenths, and by memory, but for others."""
    by_memory = (PARTS - by_requests - others) / PARTS
    held = instance.prompts.astype(np.float64) + (storage == "at-once")
    fixed = by_requests / PARTS / max_num_seqs if max_num_seqs else 0.0
    first = by_memory * held / instance.memory + fixed
    return Share(first, by_memory / instance.memory, max_num_seqs, by_requests)


def best_share(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    workers: int = 1,
    max_num_seqs: int = 0,
    storage: Storage = "at-once",
) -> Share:
    """Return the share by which the machine proves most; among equal ones, that with most work."""
    work = least_work(instance, clock)
    shares = [
        share_of(instance, max_num_seqs, part, storage)
        for part in range(PARTS + 1 if max_num_seqs else 1)
    ]
    if len(shares) == 1:
        return shares[0]
    return max(
        shares,
        key=lambda share: (
            machine_bound(instance, clock, weights, workers, share),
            work.charges(share.first, share.growth).sum(),
        ),
    )


def least_work(instance: Instance, clock: LinearClock) -> LeastWork:
    """Return the least that requests need on a clock, preempted or not."""
    prompts = instance.prompts.astype(np.float64)
    held = prompts + 1
    growth = min(clock.prefill_tokens, clock.resident_tokens)
    decode = np.minimum(clock.decode_requests, _again(held, clock))
    return LeastWork(
        clock.prefill_tokens * prompts
        + clock.squared_prompts * prompts**2
        + clock.held_tokens * held,
        decode + growth * prompts + clock.held_tokens * held,
        growth + clock.held_tokens,
        instance.outputs.astype(np.float64) - 1,
        clock.constant,
    )


def _again(held: FloatArray, clock: LinearClock) -> FloatArray:
    """Return what prefilling tokens again takes at least, beside what grows with each token."""
    growth = min(clock.prefill_tokens, clock.resident_tokens)
    return (clock.prefill_tokens - growth) * held + clock.squared_prompts * held**2


def is_decoding_cheapest(instance: Instance, clock: LinearClock) -> bool:
    """Whether prefilling tokens again always takes as long as decoding one, or longer."""
    decoded = instance.prompts[instance.outputs > 1].astype(np.float64)
    return not len(decoded) or bool(
        clock.prefill_tokens >= clock.resident_tokens
        and (_again(decoded + 1, clock) >= clock.decode_requests).all()
    )


def caveats(instance: Instance, clock: LinearClock) -> list[str]:
    """Say in a sentence each what makes bounds on this clock weaker."""
    found = []
    if not is_decoding_cheapest(instance, clock):
        found.append(
            "on this clock prefilling tokens again may take less than decoding them; the bound "
            "counts on the lesser"
        )
    if not clock.constant:
        found.append(
            "this clock has no constant, without which prices prove nothing; the bound is that of "
            "the machine"
        )
    return found


def machine_bound(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    workers: int = 1,
    share: Share | None = None,
) -> float:
    """Return a lower bound on the weighted latency on a clock, without prices."""
    work = least_work(instance, clock)
    arrivals = times_since_first(instance, clock)
    shared, growth, *_ = share_of(instance) if share is None else share
    charges = work.charges(shared, growth)
    tick = _ticks(charges, arrivals, workers)
    whole = np.floor(charges * (1 - _SAFE) * tick).astype(np.int64)
    busy = whole > 0  # others take no time of the machine that could be counted
    group, means = _mean_busy_times(
        whole[busy], np.floor(arrivals[busy] * tick).astype(np.int64), weights[busy], workers
    )
    own = weights * work.own
    total = math.fsum(own[~busy])
    if busy.any():
        parts = (
            weights[busy] * (means / tick + work.lags(shared, growth)[busy] / charges[busy]),
            weights[busy] * arrivals[busy],
        )
        counts = group.max() + 1
        late, early, alone = (np.bincount(group, part, counts) for part in (*parts, own[busy]))
        together = late - early - (_SAFE + 2.0**-52 * len(own)) * (late + early)
        total += math.fsum(np.maximum(together, alone))
    return total * (1 - _SAFE)


def prices_of_machine(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    share: Share,
    workers: int,
    width: float,  # of a bin, a power of two
    most: int,
) -> FloatArray | None:
    """Return what a second of the machine is worth in bins; None if there are too many."""
    work = least_work(instance, clock)
    arrivals = times_since_first(instance, clock)
    charges = work.charges(share.first, share.growth)
    # A bin of more ticks would leave the range of integers where all work is far below one.
    tick = max(min(_ticks(charges, arrivals, workers), _TICKS_OF_BIN / width), 1 / width)
    whole = np.maximum(1, np.floor(charges * tick).astype(np.int64))
    last = 2.0**62 / workers  # what arrives later has no bin of its own
    served = serve(
        whole,
        np.minimum(np.floor(arrivals * tick), last).astype(np.int64) * workers,
        np.argsort(whole / weights, kind="stable"),
    )
    bin_of = int(width * tick)
    if served.horizon(bin_of * workers) > most:
        return None
    return bin_of * prices_of(whole / weights, served, bin_of * workers)


def _ticks(charges: FloatArray, arrivals: FloatArray, workers: int) -> float:
    """Return into how many ticks a unit of time can be cut, a power of two."""
    extent = workers * float(arrivals[-1]) + float(charges.sum())
    return 2.0 ** min(1000, math.floor(math.log2(_TICKS / extent))) if extent else 1.0


def _mean_busy_times(
    work: IntArray, arrivals: IntArray, weights: FloatArray, workers: int
) -> tuple[IntArray, FloatArray]:
    """Return the busy period in which each request is served, and the mean time of its service."""
    if not len(work):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    priority = np.argsort(work / weights, kind="stable")
    request, begin, end, _ = serve(work, arrivals * workers, priority)
    period = np.cumsum(np.append(0, begin[1:] > end[:-1]))
    group = np.zeros(len(work), dtype=np.int64)
    group[request] = period
    middle = (begin.astype(np.float64) + end) / 2 / workers
    means = np.bincount(request, (end - begin) * middle / work[request], len(work))
    return group, means.astype(np.float64)
