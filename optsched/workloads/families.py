"""Families of random and adversarial requests."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optsched._internal.arguments import MAX_SEED, MAX_TOKENS, as_count, as_number
from optsched._internal.arrays import BoolArray, FloatArray, IntArray, checked_memory, require_room
from optsched._internal.aside import untimed
from optsched.errors import InstanceError, nearest
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    Draw = TypeVar("Draw", bound="Callable[..., Requests]")

#: What a family draws: prompts and outputs, and arrivals where the family sets them; or fields by
#: name, where pauses count as rates do.
Fields = dict[str, Any]  # of `Instance`
Requests = tuple[IntArray, IntArray] | tuple[IntArray, IntArray, IntArray] | Fields

_LEAST_RATE = 1e-12  # beyond it no request comes before the last step there is
_MAX_CV = 1e6  # of lengths; beyond it hardly one is between 1 and the longest
_BLOCK = 16  # tokens with an id
_REQUEST = 128  # bytes of a request, with what its columns are checked by
LONGEST = 50  # prompts and outputs of Sorted-F EC.4.2


def poisson(requests: int, rate: float, rng: Generator) -> IntArray:
    """Draw the steps in which a Poisson process brings its first requests."""
    _check_rate(rate)
    return np.floor(np.cumsum(rng.exponential(1 / rate, requests))).astype(np.int64)


def bounded(requests: int, rate: float, rng: Generator) -> IntArray:
    """Draw the steps of requests whose number per step is bounded (Jaillet Section 3)."""
    _check_rate(rate)
    require_room(requests / rate, 32, "steps with arrivals", "raise the rate", InstanceError)
    most = math.ceil(2 * rate)
    steps = np.empty(0, dtype=np.int64)
    begin = 0
    while len(steps) < requests:
        more = 1 + int((requests - len(steps)) / rate)
        counts = rng.binomial(most, rate / most, more)
        steps = np.concatenate([steps, np.repeat(np.arange(begin, begin + more), counts)])
        begin += more
    return steps[:requests]


def _check_rate(rate: float, name: str = "rate") -> None:
    wish = f"a number of requests per step from {_LEAST_RATE:g} to {MAX_TOKENS:g}"
    as_number(name, rate, lambda each: _LEAST_RATE <= each <= MAX_TOKENS, wish)


@dataclass(frozen=True)
class WorkloadFamily:
    """A family of instances."""

    draw: Callable[..., Requests]  # from a generator, the number of requests, memory, parameters
    memory: int  # by default
    requests: int | None  # by default; None where it follows from the memory
    description: str
    source: str  # the place in the paper
    arrive: Callable[[int, float, Generator], IntArray] = poisson

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters beyond the number of requests and the memory."""
        return list(inspect.signature(self.draw).parameters)[3:]


#: The families by name.
FAMILIES: dict[str, WorkloadFamily] = {}


def workload(
    name: str, memory: int, requests: int | None, source: str, **arrive: Any
) -> Callable[[Draw], Draw]:
    """Register a function as a family, described by its docstring; see `WorkloadFamily`."""

    def register(draw: Draw) -> Draw:
        description = " ".join((draw.__doc__ or "").split())
        FAMILIES[name] = WorkloadFamily(draw, memory, requests, description, source, **arrive)
        return draw

    return register


def family(
    name: str,
    n: int | None = None,
    seed: int = 0,
    memory: int | None = None,
    *,
    rate: float | None = None,
    load: float | None = None,
    seconds_per_step: float | None = None,
    **parameters: float,
) -> Instance:
    r"""Make an instance of a family: `FAMILIES` lists them.

    Parameters
    ----------
    name
        The family.
    n, memory
        Number of requests, and memory :math:`M` of the worker in tokens; None: the paper's.
    seed
        Seed of the random generator: the same seed gives the same requests, and neither `rate` nor
        `load` changes their lengths.
    rate
        Requests per step of a Poisson process of arrivals (of a bounded number per step for
        equal-prompts), or per second where the length of a step is given; in conversations, first
        turns. None: all arrive at step 0, unless the family says otherwise.
    load
        Sets the rate so that the requests bring this share of the memory-time that passes between
        arrivals: rate = load :math:`\cdot M /` mean :math:`A_i`. So it is on average; the `load` of
        few requests may be far from it.
    seconds_per_step
        Length of a step in seconds, for runs on a clock; short steps keep arrivals precise.
    **parameters
        Further parameters of the family.

    Raises
    ------
    InstanceError
        If the name, a parameter or its value is not understood.

    Examples
    --------
    >>> import optsched
    >>> optsched.family("mixed", n=4, seed=1).outputs
    array([1, 4, 1, 5])
    >>> print(FAMILIES["sorted-f-example-1"].description)
    one request of M - 1 and 1 tokens before many of 1 and 2
    """
    if not isinstance(name, str) or name not in FAMILIES:
        raise InstanceError(f"there is no family {name!r}; {nearest(str(name), FAMILIES)}")
    chosen = FAMILIES[name]
    for parameter, value in parameters.items():
        if parameter not in chosen.parameters:
            known = ["n", "seed", "rate", "load", "seconds_per_step", *chosen.parameters]
            raise InstanceError(
                f"family {name} has no parameter {parameter!r}; {nearest(parameter, known)}"
            )
        if chosen.draw.__annotations__[parameter] == "int":
            parameters[parameter] = as_count(parameter, value, 0)
        else:
            as_number(parameter, value, lambda _: True, "a finite number")
    memory = chosen.memory if memory is None else checked_memory(memory)
    n = chosen.requests if n is None else as_count("n", n)
    if rate is not None:
        _check_rate(rate)
    if rate is not None and load is not None:
        raise InstanceError("rate and load are both given; keep one of them")
    if n is not None:
        require_requests(n)
    rng = np.random.default_rng(as_count("seed", seed, 0, MAX_SEED))
    drawn, names = chosen.draw(rng, n, memory, **parameters), ("prompts", "outputs", "arrivals")
    fields: Fields = drawn if isinstance(drawn, dict) else dict(zip(names, drawn, strict=False))
    if "pauses" in fields:
        fields["pauses"] = np.rint(fields["pauses"] / (seconds_per_step or 1)).astype(np.int64)
    instance = Instance(**fields, memory=memory, name=name, seconds_per_step=seconds_per_step)
    if load is not None:
        load = as_number("load", load, lambda each: each > 0, "positive")
        rate = float(load * memory / float(instance.areas.sum()) * _firsts(instance).sum())
        _check_rate(rate, f"load is {load:g}, for which rate")
    elif rate is not None and seconds_per_step is not None:
        rate *= seconds_per_step
    if rate is None:
        return instance
    firsts = _firsts(instance)
    arrivals = chosen.arrive(int(firsts.sum()), rate, rng)
    return instance.replace(arrivals=arrivals[np.cumsum(firsts) - 1])


def _firsts(instance: Instance) -> BoolArray:
    return np.full(len(instance), -1) < 0 if instance.follows is None else instance.follows < 0


def require_requests(n: int) -> None:
    """Refuse a number of requests whose arrays do not fit into memory."""
    require_room(n, _REQUEST, "requests of a family", "take fewer by n", InstanceError)


def family_from_text(text: str, memory: int | None = None) -> Instance:
    """Make an instance from ``family:NAME,n=...,seed=...`` with any parameters of `family`."""
    name, parameters = parse_family(text)
    return family(name, memory=memory, **parameters)


def parse_family(text: str) -> tuple[str, Fields]:
    """Take ``family:NAME,key=number,...`` apart."""
    text, *assignments = text.split(",")
    name = text.removeprefix("family:")
    parameters: Fields = {}
    for assignment in assignments:
        key, _, value = (part.strip() for part in assignment.partition("="))
        if key in parameters:
            raise InstanceError(f"{text}: {key} is there twice; keep one of them")
        try:
            if "_" in value or not value.isascii():  # which only Python takes for digits
                raise ValueError
            parameters[key] = float(value) if set(value) & set(".eEnN") else int(value)
        except ValueError:
            raise InstanceError(
                f"{text}: {assignment!r} is not understood; write parameters as key=number"
            ) from None
    for key in ("memory", "name"):
        if key in parameters:
            raise InstanceError(
                f"{text}: {key} is not a parameter of a family; leave out {key}={parameters[key]}"
            )
    return name.strip(), parameters


def _rounded(lengths: FloatArray, longest: int = LONGEST) -> IntArray:
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)


@workload("uniform", 100, 100, "Sorted-F EC.4.2")
def _uniform(rng: Generator, n: int, memory: int) -> Requests:
    """s and o uniform on 1 .. 50"""
    # U(1, 51) as NumPy reads it: the integers 1 to 50, so that s_max = o_max = 50 holds.
    return rng.integers(1, 51, n), rng.integers(1, 51, n)


@workload("normal", 100, 100, "Sorted-F EC.4.2")
def _normal(rng: Generator, n: int, memory: int) -> Requests:
    """s and o N(25, 8.33^2) in [1, 50]"""
    return _rounded(rng.normal(25, 8.33, n)), _rounded(rng.normal(25, 8.33, n))


@workload("binomial", 100, 100, "Sorted-F EC.4.2")
def _binomial(rng: Generator, n: int, memory: int) -> Requests:
    """s and o 1 + binomial with 49 fair trials"""
    return rng.binomial(49, 0.5, n) + 1, rng.binomial(49, 0.5, n) + 1


@workload("exponential", 100, 100, "Sorted-F EC.4.2")
def _exponential(rng: Generator, n: int, memory: int) -> Requests:
    """s and o exponential of mean 5 in [1, 50]"""
    return _rounded(rng.exponential(5, n)), _rounded(rng.exponential(5, n))


@workload("mixed", 100, 200, "Sorted-F EC.4.2")
def _mixed(rng: Generator, n: int, memory: int) -> Requests:
    """s 80 % exponential of mean 10 and 20 % lognormal about 40, o exponential of mean 5, all in
    [1, 50]"""
    long = rng.random(n) < 0.2
    prompts = np.where(long, rng.lognormal(math.log(40), 0.25, n), rng.exponential(10, n))
    # U(40, 50) in the same reading: the integers 40 to 49.
    prompts = np.where(prompts > LONGEST, rng.integers(40, 50, n), prompts)
    return _rounded(prompts), _rounded(rng.exponential(5, n))


@workload("chat-and-summaries", 16492, 2000, "means and medians of the data of Sorted-F Section 7")
def _chat_and_summaries(rng: Generator, n: int, memory: int, summaries: float = 0.2) -> Requests:
    """80 % short chats and 20 % long summaries"""
    with untimed():
        from scipy.special import betaincinv, ndtri

    if not 0 <= summaries <= 1:
        raise InstanceError(f"summaries is {summaries}, but must be a share from 0 to 1")
    long = round(summaries * n)
    chat = n - long

    def strata(count: int) -> FloatArray:
        return (rng.permutation(count) + rng.random(count)) / count

    def lognormal(median: float, mean: float, count: int) -> FloatArray:
        spread = math.sqrt(2 * math.log(mean / median))
        return median * np.exp(spread * ndtri(strata(count)))

    quantile = strata(chat)
    chat_prompts = 12 * (quantile / (1 - quantile)) ** 0.815
    long_prompts = 4096 * betaincinv(1.881, 1.145, strata(long))
    prompts = np.concatenate([chat_prompts, long_prompts])
    outputs = np.concatenate([lognormal(43, 85.35, chat), lognormal(161, 296.08, long)])
    order = rng.permutation(n)
    return _rounded(prompts, 4096)[order], _rounded(outputs, 4096)[order]


@workload("equal-prompts", 200, 1000, "Jaillet Sections 3 and 5", arrive=bounded)
def _equal_prompts(
    rng: Generator,
    n: int,
    memory: int,
    prompt: int = 1,
    output_least: int = 1,
    output_most: int = 10,
) -> Requests:
    """s the same for all and small against M, o uniform, and a bounded number of arrivals per step:
    1 and 1 .. 10 by default"""
    as_count("output_least", output_least)
    as_count("output_most", output_most, output_least)
    return np.full(n, prompt), rng.integers(output_least, output_most, n, endpoint=True)


@workload("chat", 16492, 2000, "moments of Robust Section 6")
def _chat(rng: Generator, n: int, memory: int) -> Requests:
    """s Weibull up to 468, o a short answer or a long one, up to 883: conversations"""
    form, scale, longest = 0.48, 23.5, 468
    below = -math.expm1(-((longest / scale) ** form))
    prompts = scale * (-np.log1p(-below * rng.random(n))) ** (1 / form)
    short = rng.random(n) < 0.465
    outputs = np.where(short, rng.exponential(10, n), rng.gamma(2.5, 59.9, n))
    return _rounded(np.ceil(prompts), longest), _rounded(np.ceil(outputs), 883)


@workload("chat-words", 16492, 10000, "means and medians of Jaillet Section 7")
def _chat_words(rng: Generator, n: int, memory: int) -> Requests:
    """s lognormal below 500, o gamma below 600: conversations whose lengths are counted in words"""
    with untimed():
        from scipy.special import gammainc, gammaincinv, ndtr, ndtri

    mean, spread = 2.432, 2.040
    below = ndtr((np.log(499) - mean) / spread)
    prompts = np.exp(mean + spread * ndtri(below * rng.random(n)))
    form, scale = 0.5658, 158.6
    below = gammainc(form, 599 / scale)
    outputs = scale * gammaincinv(form, below * rng.random(n))
    return _rounded(np.ceil(prompts), 499), _rounded(np.ceil(outputs), 599)


@workload("lognormal", 20480, 24000, "figures of BF-IO Table 1 on 16 workers of 72 slots")
def _lognormal(
    rng: Generator,
    n: int,
    memory: int,
    prompt_mean: float = 900,
    prompt_cv: float = 1.4,
    prompt_most: int = 16384,
    output_mean: float = 300,
    output_cv: float = 0.9,
    output_most: int = 4096,
) -> Requests:
    """s lognormal of mean 900 and cv 1.4, o lognormal of mean 300 and cv 0.9, clipped"""

    def lengths(name: str, mean: float, cv: float, most: int) -> IntArray:
        if not (mean > 0 and 0 <= cv <= _MAX_CV and most >= 1):
            raise InstanceError(
                f"{name} has mean {mean}, cv {cv} and at most {most}, but the mean must be "
                f"positive, cv from 0 to {_MAX_CV:g} and the most at least 1"
            )
        variance = math.log1p(cv * cv)
        drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)
        return _rounded(drawn, most)

    return (
        lengths("prompt", prompt_mean, prompt_cv, prompt_most),
        lengths("output", output_mean, output_cv, output_most),
    )


@workload("system-prompts", 16492, 2000, "of its own")
def _system_prompts(
    rng: Generator,
    n: int,
    memory: int,
    heads: int = 4,
    shared: int = 2000,
    text: float = 200,
    output: float = 150,
) -> Requests:
    """s one of some shared heads, the k-th as likely as 1 / k, and a text, o an answer; both
    lognormal of cv 1"""
    drawn = _chats(rng, n, memory, (heads, shared), np.ones(n, dtype=bool), (text, output))
    return {field: drawn[field] for field in ("prompts", "outputs", "hash_ids", "hash_block")}


@workload("conversations", 16492, 2000, "of its own")
def _conversations(
    rng: Generator,
    n: int,
    memory: int,
    turns: float = 4,
    pause: float = 30,
    heads: int = 1,
    shared: int = 500,
    text: float = 100,
    output: float = 200,
) -> Requests:
    """turns whose s is a shared head, all that was said before and a text, o an answer; the next
    one comes when it has ended, after an exponential pause"""
    as_number("turns", turns, lambda each: each >= 1, "at least 1")
    as_number("pause", pause, lambda each: each >= 0, "at least 0")
    drawn = _chats(rng, n, memory, (heads, shared), rng.random(n) < 1 / turns, (text, output))
    return drawn | {"pauses": rng.exponential(pause, n)}


def _chats(
    rng: Generator,
    n: int,
    memory: int,
    head: tuple[int, int],
    begin: BoolArray,
    means: tuple[float, float],
) -> Fields:
    """Draw turns of conversations that begin at some requests, and anew where memory is full."""
    heads, shared = as_count("heads", head[0]), as_count("shared", head[1], 0, memory - 2)
    longest, spread = (memory - shared) // 2, math.sqrt(math.log(2))  # of a cv of 1
    for name, mean in zip(("text", "output"), means, strict=True):
        as_number(name, mean, lambda each: each > 0, "a positive number of tokens")
    texts, outputs = (
        _rounded(rng.lognormal(math.log(mean) - spread**2 / 2, spread, n), longest)
        for mean in means
    )
    follows, peaks, peak = np.arange(-1, n - 1), np.zeros(n, dtype=np.int64), memory
    for request, more in enumerate((texts + outputs).tolist()):
        if begin[request] or peak + more > memory:
            follows[request], peak = -1, shared
        peak += more
        peaks[request] = peak
    chat = np.cumsum(follows < 0) - 1
    likely = 1 / np.arange(1, heads + 1)
    of_chat = rng.choice(heads, chat[-1] + 1, p=likely / likely.sum())
    lengths = peaks // _BLOCK if (follows >= 0).any() else np.full(n, shared // _BLOCK)
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    common = (place + 1) * _BLOCK <= shared
    owner = np.where(common, np.repeat(of_chat[chat], lengths), heads + np.repeat(chat, lengths))
    ids = owner * (memory // _BLOCK + 1) + place
    return {
        **{"prompts": peaks - outputs, "outputs": outputs, "follows": follows},
        "hash_ids": np.split(ids, np.cumsum(lengths)[:-1]),
        "hash_block": _BLOCK,
    }


_MAX_REQUESTS = 10**8  # requests that follow from the memory


def _two_types(
    n: int | None, first: tuple[int, int, int], second: tuple[int, int, int]
) -> Requests:
    """Repeat two types (prompt, output, count), scaled to n requests if n is given."""
    counts = [first[2], second[2]]
    if n is not None:
        counts[0] = min(max(1, round(n * counts[0] / sum(counts))), max(1, n - 1))
        counts[1] = n - counts[0]
    require_requests(sum(counts))
    return np.repeat([first[0], second[0]], counts), np.repeat([first[1], second[1]], counts)


def _root(memory: int) -> int:
    root = math.isqrt(memory)
    if root * root != memory or root < 2:
        near = max(2, round(math.sqrt(memory)))
        raise InstanceError(
            f"memory is {memory}, but this family needs a square from 4; take {near * near}"
        )
    return root


@workload("sorted-f-theorem-1", 64, None, "Sorted-F Theorem 1")
def _theorem_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """M requests of sqrt(M) - 1 and 1 tokens, M^1.5 of 1 and 2: shortest output first fails"""
    root = _root(memory)
    return _as_printed(n, memory, (root - 1, 1), (1, 2))


@workload("sorted-f-theorem-ec-1", 64, None, "Sorted-F Theorem EC.1")
def _theorem_ec_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """M requests of 1 and sqrt(M) - 1 tokens, M^1.5 of sqrt(M) and 1: smallest total first fails"""
    root = _root(memory)
    return _as_printed(n, memory, (1, root - 1), (root, 1))


def _as_printed(
    n: int | None, memory: int, first: tuple[int, int], second: tuple[int, int]
) -> Requests:
    many = memory * math.isqrt(memory)
    if n is None and many > _MAX_REQUESTS:
        raise InstanceError(
            f"with memory {memory} this family has {many + memory:,} requests; give n, or take the "
            "family of the same name that ends in -balanced"
        )
    return _two_types(n, (*first, memory), (*second, many))


@workload("sorted-f-theorem-1-balanced", 64, None, "after Sorted-F Theorem 1")
def _theorem_1_balanced(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the requests of sorted-f-theorem-1 in the numbers for which shortest output first is worst:
    its ratio to the other order grows like M^0.25"""
    root = _root(memory)
    return _balanced(n, memory, (root - 1, 1), (1, 2), batches, of_first=False)


@workload("sorted-f-theorem-1-long", 64, None, "after Sorted-F Theorem 1")
def _theorem_1_long(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the same with prompts of M - 1 in place of sqrt(M) - 1: the ratio grows like M^0.5"""
    return _balanced(n, memory, (memory - 1, 1), (1, 2), batches, of_first=False)


@workload("sorted-f-theorem-ec-1-balanced", 64, None, "after Sorted-F Theorem EC.1")
def _theorem_ec_1_balanced(
    rng: Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """the requests of sorted-f-theorem-ec-1 in the numbers for which smallest total first is worst:
    its ratio to the other order grows like M^0.25"""
    root = _root(memory)
    return _balanced(n, memory, (1, root - 1), (root, 1), batches, of_first=True)


@workload("sorted-f-theorem-ec-1-long", 64, None, "after Sorted-F Theorem EC.1")
def _theorem_ec_1_long(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the same with peaks of M - 1 and M in place of sqrt(M) and sqrt(M) + 1: the ratio grows like
    M^0.5"""
    return _balanced(n, memory, (1, memory - 2), (memory - 1, 1), batches, of_first=True)


def _balanced(
    n: int | None,
    memory: int,
    first: tuple[int, int],
    second: tuple[int, int],
    batches: int,
    *,
    of_first: bool,
) -> Requests:
    """Take so many batches of two types that serving the first type first is as bad as can be."""
    if memory < 16:
        raise InstanceError(f"memory is {memory}, but this family needs 16 or more")
    as_count("batches", batches)
    (d, p), (e, q) = ((o, memory // (s + o)) for s, o in (first, second))
    weight, other = (d * p, e * q) if of_first else (e * q, d * p)
    matched = max(1, round(math.sqrt(weight * batches * (batches + 1) / other)))
    a, b = (batches, matched) if of_first else (matched, batches)
    if n is None and a * p + b * q > _MAX_REQUESTS:
        raise InstanceError(f"this would be {a * p + b * q:,} requests; take fewer batches")
    return _two_types(n, (*first, a * p), (*second, b * q))


@workload("sorted-f-example-1", 64, None, "Sorted-F Example 1")
def _example_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """one request of M - 1 and 1 tokens before many of 1 and 2"""
    seconds = memory // 3 if n is None else n - 1
    require_requests(seconds)
    return np.array([memory - 1] + [1] * seconds), np.array([1] + [2] * seconds)


@workload("jaillet-theorem-6-2", 64, None, "Jaillet Theorem 6.2")
def _jaillet(rng: Generator, n: int | None, memory: int) -> tuple[IntArray, IntArray, IntArray]:
    """one request that fills the memory, and short ones that come shortly before it ends"""
    # epsilon = shorts / M. The long request is taken to start at once, t' = 0.
    shorts = memory // 8 if n is None else n - 1
    if not 1 <= 2 * shorts <= memory:
        raise InstanceError(
            f"n is {shorts + 1}, but must be from 2 to 1 + half of the memory {memory}"
        )
    require_requests(shorts)
    arrivals = np.array([0] + [memory - 2 * shorts] * shorts)
    return np.full(shorts + 1, shorts), np.array([memory - shorts] + [1] * shorts), arrivals


@workload("jaillet-theorem-6-4", 64, None, "after Jaillet Theorem 6.4")
def _jaillet_random(rng: Generator, n: int | None, memory: int, delay: int = 2) -> Requests:
    """the same requests, but the short ones come at a random step: an algorithm that starts the
    long one within delay * memory steps has no constant ratio in expectation"""
    prompts, outputs = _jaillet(rng, n, memory)[:2]
    as_count("delay", delay)
    shorts = len(prompts) - 1
    # From epsilon M to (delay + 1 - 2 epsilon) M, in steps of epsilon M: each is as likely.
    place = rng.integers(1, (delay + 1) * (memory // shorts) - 1)
    return prompts, outputs, np.array([0] + [place * shorts] * shorts)


@workload("robust-two-point", 400, None, "Robust Theorem 5.1")
def _robust_two_point(
    rng: Generator, n: int | None, memory: int, short: int = 4, long: int = 20, share: float = 0.5
) -> Requests:
    """no prompts, outputs short or long: A_min is bounded by (3 - short / long) / 2, where the
    share of short ones is long / (short + long)"""
    if not (1 <= short <= long <= memory and 0 <= share <= 1):
        raise InstanceError(
            f"short is {short}, long {long} and share {share}, but must be whole numbers with "
            f"1 <= short <= long <= memory {memory}, and from 0 to 1"
        )
    count = 20 * memory // short if n is None else n
    require_requests(count)
    shorts = round(share * count)
    outputs = np.repeat([short, long], [shorts, count - shorts])
    return np.zeros_like(outputs), outputs


@workload("robust-theorem-3-4", 64, None, "Robust Theorem 3.4")
def _robust_theorem_3_4(
    rng: Generator,
    n: int | None,
    memory: int,
    short: int = 4,
    batches: int = 100,
    mix: float | None = None,
) -> Requests:
    """no prompts, outputs short and M / short in so many batches: reserving the longest output for
    each costs 3 times H-SF here, not the printed 6"""
    if not (short >= 1 and memory % short == 0 and memory // short >= short and batches >= 1):
        raise InstanceError(
            f"short is {short} and batches {batches}, but short must divide the memory {memory} "
            "and be at most its root, and there is at least one batch"
        )
    long = memory // short
    shorts = round((math.sqrt(short / long) if mix is None else mix) * batches)
    return _two_types(n, (0, short, shorts * long), (0, long, batches * short))


@workload("partition", 100, 20, "Partition, Sorted-F Theorem EC.2")
def _partition(rng: Generator, n: int, memory: int) -> Requests:
    """2 batches can hold all requests, makespan 2"""
    if n < 2 or n - n // 2 > memory:
        raise InstanceError(f"n is {n}, but must be from 2 to twice the memory {memory}")
    halves = []
    for count in (n // 2, n - n // 2):
        cuts = np.sort(rng.choice(memory - 1, count - 1, replace=False)) + 1
        halves.append(np.diff(cuts, prepend=0, append=memory))
    return _sets(rng, np.concatenate(halves))


@workload("partition-no", 101, 20, "Partition, Sorted-F Theorem EC.2")
def _partition_no(rng: Generator, n: int, memory: int) -> Requests:
    """2 batches cannot hold all requests by parity, makespan 3 or more"""
    halves = memory
    if not memory % 2 or not 3 <= n <= halves:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but the memory must be odd and n from 3 to it"
        )
    while True:
        cuts = np.sort(rng.choice(halves - 1, n - 1, replace=False)) + 1
        numbers = np.diff(cuts, prepend=0, append=halves)
        if 2 * numbers.max() <= memory:
            return _sets(rng, 2 * numbers)


@workload("3-partition", 100, 30, "3-Partition, Sorted-F Theorem 2")
def _three_partition(rng: Generator, n: int, memory: int) -> Requests:
    """n / 3 batches of three requests each fill the memory"""
    least = memory // 4 + 1
    if n % 3 or 3 * least > memory:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but n must be a multiple of 3 and the memory the "
            "sum of three numbers above its quarter, as 100 is"
        )
    # All three exceed a quarter of the memory, so that none reaches half of it.
    first = rng.integers(least, memory - 2 * least + 1, n // 3)
    second = rng.integers(least, memory - least - first + 1)
    return _sets(rng, np.concatenate([first, second, memory - first - second]))


@workload("3-partition-no", 99, 30, "3-Partition, Sorted-F Theorem 2")
def _three_partition_no(rng: Generator, n: int, memory: int) -> Requests:
    """n / 3 batches cannot hold all requests by divisibility"""
    groups = n // 3
    prime = next((p for p in range(2, groups + 1) if groups % p == 0 and memory % p), 0)
    least, most = (memory // (4 * prime) + 1, (memory - 1) // (2 * prime)) if prime else (1, 0)
    total = groups * memory // max(prime, 1)
    if n % 3 or not n * least <= total <= n * most:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but n must be a multiple of 3 and n / 3 must have "
            "a prime factor p that does not divide the memory, with multiples of p between its "
            "quarter and its half, as 30 and 99 have"
        )
    numbers = rng.integers(least, most + 1, n)
    while (missing := total - int(numbers.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(numbers != (most if missing > 0 else least))
        numbers[rng.choice(free, min(abs(missing), len(free)), replace=False)] += step
    return _sets(rng, prime * numbers)


def _sets(rng: Generator, numbers: IntArray) -> Requests:
    # A request of s tokens holds s + 1 while it makes its only one; the proofs count it as s.
    return rng.permutation(numbers) - 1, np.ones(len(numbers), dtype=np.int64)
