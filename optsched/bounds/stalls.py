r"""What later requests cost those before them, on a clock and one worker.

A batch lasts its constant :math:`c_0` and all work in it, so the prefill work :math:`p_k` of a
request that comes in the batches of another stalls that one - or is put off, which the request
itself feels. Let :math:`\tau_i = a_i + w_i` be when request i completes if nothing else runs,
:math:`X_k \ge 0` by how much the first token of k comes later than alone, and :math:`v_k(t)` the
prefill work of k, at most :math:`p_k`, in batches that begin before t. Then with "later" in order
of arrival

.. math::

    C_i - a_i \ge w_i + \sum_{k \text{ later}} v_k(\tau_i)
        + \max\{0, X_i - \sum_{j \text{ later}, a_j < P_i} p_j\},

since what passes in :math:`X_i` is not in :math:`w_i`, and of j at least :math:`v_j(\tau_i) - p_j
[a_j < P_i]` comes after the first token of i, at :math:`P_i`. Batches of k that begin at
:math:`\tau` or later lie before :math:`P_k` and last their work and, the last one, a constant more,
so that :math:`v_k(\tau) \ge \min\{p_k, \max\{0, \tau - a_k - X_k\}\}`. So the total latency is at
least the sum over k of :math:`w_k` and the least over :math:`X \ge 0` of what X costs k itself and
what of :math:`p_k` then comes before the :math:`\tau_i` of those before it. It is taken over cells
of X: of each, the first part at its beginning, with arrivals until its end, and the second at its
end. It holds for all ways to form batches, in both conventions of storage.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.bounds.on_clock import SAFE, least_work
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance

_CELLS = 32  # in the mean prefill, where pairs of requests that may stall each other are few
_FEW, _MOST = 3e6, 5e8  # pairs; above the most it would take seconds, and each counts as alone


@compiled
def _cheapest(
    arrivals: FloatArray, alone: FloatArray, firsts: FloatArray, prefills: FloatArray, step: float
) -> tuple[float, int]:
    """Return what all together cost beyond being alone, and the most that one may stall."""
    count, total, most = len(arrivals), 0.0, 0
    come = np.cumsum(prefills)
    # The least that is left of the time since the first arrival, without all prefills until then.
    ahead = np.full(count + 1, np.inf)
    for j in range(count - 1, -1, -1):
        ahead[j] = min(ahead[j + 1], arrivals[j] - come[j])
    ends = np.empty(count)  # of those before, ascending
    sums = np.zeros(count + 1)  # of all from each one on, since the arrival
    begin = 0
    for k in range(count):
        now, prefill = arrivals[k], prefills[k]
        while begin < k and ends[begin] <= now:
            begin += 1
        sums[k] = 0.0
        for i in range(k - 1, begin - 1, -1):
            sums[i] = sums[i + 1] + ends[i] - now
        most = max(most, k - begin)
        least, x, j, low, high = np.inf, 0.0, k + 1, begin, begin
        while begin < k:
            until = max(x + step, come[j - 1] - come[k])  # up to there it costs itself nothing
            while low < k and ends[low] <= now + until:
                low += 1
            while high < k and ends[high] <= now + until + prefill:
                high += 1
            stalled = sums[low] - (k - low) * until
            stalled -= sums[high] - (k - high) * (until + prefill)
            time = now + firsts[k] + until
            while j < count and arrivals[j] < time:
                j += 1
            least = min(least, max(0.0, x - come[j - 1] + come[k]) + max(0.0, stalled))
            coming = min(time - come[j - 1], ahead[j]) - now - firsts[k] - step + come[k]
            if least <= 0 or coming >= least:  # what is put off longer costs more
                break
            x = until
        if begin < k:
            total += least
        place = k
        while place > begin and ends[place - 1] > now + alone[k]:
            ends[place] = ends[place - 1]
            place -= 1
        ends[place] = now + alone[k]
    return total, most


def bound_by_stalls(
    instance: Instance, clock: LinearClock, certificate: ClockCertificate
) -> ClockCertificate:
    """Return the certificate with a bound on the total latency by what prefills stall."""
    work, arrivals = least_work(instance, clock), times_since_first(instance, clock)
    prompts = instance.prompts.astype(np.float64)
    prefills = clock.prefill_tokens * prompts + clock.squared_prompts * prompts**2
    ended = np.searchsorted(np.sort(arrivals + work.own), arrivals, side="right")
    pairs = float((np.arange(len(ended)) - ended).sum())
    step = float(prefills.mean()) / _CELLS * max(1.0, pairs / _FEW) if pairs <= _MOST else 0.0
    extra, most = 0.0, 0
    if step > 0:
        firsts = clock.constant + work.first
        extra, most = _cheapest(arrivals, work.own, firsts, prefills, step)
    own, longest = float(work.own.sum()), float(arrivals[-1] + work.own.max() + prefills.sum())
    # A request's cost is a few differences of sums, each of at most as many terms as may stall.
    lost = len(instance) * 2.0**-52 * (longest * (most + 8) ** 2 + len(instance) * prefills.sum())
    value = (own + max(0.0, extra - lost)) * (1 - SAFE - 2.0**-52 * len(instance))
    return replace(certificate, stalls=step, by_requests=0, value=Fraction(value))
