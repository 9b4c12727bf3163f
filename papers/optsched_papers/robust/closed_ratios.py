"""Competitive ratios in closed form (Robust, Sections 3 and 5), as the memory grows."""

# alpha = l / u is the ratio of the bounds on outputs; q is the probability of going on after each
# token. There are no prompts unless said otherwise.

from __future__ import annotations

import math

from optsched.errors import ModelError

#: Where the bounds of A_min and A_l for outputs that are l or u cross, (3 - sqrt 5) / 2.
CROSSOVER = (3 - math.sqrt(5)) / 2


def a_max_bound(alpha: float) -> float:
    r"""Theorem 3.3: A_max is bounded by :math:`\alpha^{-1} (1 + \alpha^{-1}) / 2 + O(1 / M)`."""
    _check("alpha", alpha, positive=True)
    return (1 + 1 / alpha) / (2 * alpha)


def a_max_printed_lower_bound(alpha: float) -> float:
    r"""Theorem 3.4 as printed: :math:`\alpha^{-1} (1 + \alpha^{-1/2}) / 2`; see `a_max_workers`."""
    _check("alpha", alpha, positive=True)
    return (1 + 1 / math.sqrt(alpha)) / (2 * alpha)


def a_max_proven_bound(
    short: int, long: int, prompt: int = 0, *, any_memory: bool = False
) -> float:
    """Bound A_max over all outputs from short to long, in multiples of the largest peak or not."""
    # While a request waits, at least m = floor(M / (s + u)) run, as none is thought to hold more.
    # So the k-th starts by sum_{j < k} o_j / m, and in random order all of them cost at most
    # sum o + (n - 1) sum o / 2 m. No schedule costs less than sum o, nor less than
    # n^2 E min(w, w') / 2 M for two requests drawn with memory-times w = s o + o (o + 1) / 2. Hence
    # the ratio is at most 1 + (M / m) E o / E min(w, w'), which is largest where P(o >= k) is in
    # proportion to 1 / (s + k) for k above short. M / m is s + u for a multiple, else below twice
    # that: most of the memory is left over where one token is missing for a second request.
    if not 1 <= short <= long:
        raise ModelError(f"short is {short} and long {long}, but 1 <= short <= long must hold")
    peak = prompt + long
    per_request = 2 * peak - 1 if any_memory else peak
    harmonic = sum(1 / (prompt + k) for k in range(short + 1, long + 1))
    least = short * (prompt + (short + 1) / 2)
    return 1 + per_request * (short + math.sqrt(short**2 + least * harmonic)) / (2 * least)


def a_max_workers(alpha: float, mix: float) -> float:
    r"""Compute the ratio in the proof of Theorem 3.4, whose A_max reserves u tokens per request."""
    _check("alpha", alpha, positive=True)
    if not 0 <= mix < math.inf:
        raise ModelError(f"mix is {mix}, but must be a number from 0")
    return (mix + alpha) * (mix + 1) / (alpha * (mix**2 + 2 * alpha * mix + 1))


def a_max_worst_mix(alpha: float) -> float:
    r"""Return the mix at which `a_max_workers` is largest, :math:`1 + \sqrt{2 + 2 \alpha}`."""
    # alpha times that ratio is 1 + (1 - alpha) (mix - 1) / (mix^2 + 2 alpha mix + 1). So the most
    # is 1 / alpha times 1 + (1 - alpha) / (2 (1 + alpha + sqrt(2 + 2 alpha))), which mends 3.4.
    _check("alpha", alpha, positive=True)
    return 1 + math.sqrt(2 + 2 * alpha)


# With prompts of s tokens the most of Lemma 4.6 over two outputs, and of the same sums for A_l, has
# a factor t = root(u (s + l) / (l (s + u))): alpha t is the root of l (s + l) / (u (s + u)).


def with_prompts(short: int, long: int, prompt: int) -> float:
    """Return by what prompts mend Theorems 5.1 and 5.2; 1 without any."""
    return math.sqrt(long * (prompt + short) / (short * (prompt + long)))


def a_min_two_point(alpha: float, factor: float = 1.0) -> float:
    r"""Theorem 5.1, outputs l or u: :math:`(3 - \alpha) / 2`, at :math:`x_\ell = x_u / \alpha`."""
    _check("alpha", alpha)
    return 1 + factor * (1 - alpha * factor) / 2


def a_l_two_point(alpha: float, factor: float = 1.0) -> float:
    r"""Bound A_l for outputs that are l or u (Theorem 5.2)."""
    _check("alpha", alpha)
    root = alpha * factor
    return 1 + (root / (2 * (1 - root)) if root <= 0.5 else 2 * root**2)


def a_min_geometric(q: float) -> float:
    r"""Compute the ratio of A_min for outputs with :math:`P(o = k) = (1 - q) q^{k - 1}`."""
    _check("q", q)
    if q == 0:
        return 1.0
    bracket = 2 + 3 * q - (1 + 4 * q + q * q) * math.log1p(q) / q
    return (1 + q) ** 2 / (1 + q * q) * bracket


def a_min_weighted_geometric(q: float) -> float:
    r"""Compute the ratio of A_min for outputs with :math:`P(o = k) = k (1 - q)^2 q^{k - 1}`."""
    _check("q", q)
    above = (1 + q) ** 2 * (1 + 3 * q + 6 * q**2 + 3 * q**3 + q**4)
    below = 1 + 2 * q + 11 * q**2 + 8 * q**3 + 11 * q**4 + 2 * q**5 + q**6
    return above / below


def _check(name: str, value: float, *, positive: bool = False) -> None:
    if not 0 <= value <= 1 or (positive and value == 0):
        least = "above 0" if positive else "from 0"
        raise ModelError(f"{name} is {value}, but must be {least} to 1")
