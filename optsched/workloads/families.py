"""Families of instances: the distributions of the papers' experiments, and adversarial requests.

Sorted-F is "LLM Serving Optimization with Variable Prefill and Decode Lengths", Jaillet is "Online
Scheduling for LLM Inference with KV Cache Constraints".
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import MAX_TOKENS, FloatArray, IntArray, checked_memory
from optsched.errors import InstanceError, nearest
from optsched.instance import Instance
from optsched.workloads import adversarial
from optsched.workloads.arrivals import Requests, bounded, poisson
from optsched.workloads.chat import chat

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS = ("prompts", "outputs", "arrivals")

LONGEST = 50  # prompts and outputs of Sorted-F EC.4.2


@dataclass(frozen=True)
class WorkloadFamily:
    """A family of instances.

    Parameters
    ----------
    draw
        Makes prompts and outputs from a random generator, the number of requests, the memory and
        the parameters that it has beyond these.
    memory
        Tokens that the worker holds by default.
    requests
        Number of requests by default; None where it follows from the memory.
    description, source
        What the requests are like, and the place in the paper.
    arrive
        Draws arrivals from the number of requests, their rate and a random generator.
    """

    draw: Callable[..., Requests]
    memory: int
    requests: int | None
    description: str
    source: str
    arrive: Callable[[int, float, np.random.Generator], IntArray] = poisson

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters beyond the number of requests and the memory."""
        return list(inspect.signature(self.draw).parameters)[3:]


def family(
    name: str,
    n: int | None = None,
    seed: int = 0,
    memory: int | None = None,
    *,
    rate: float | None = None,
    load: float | None = None,
    seconds_per_step: float | None = None,
    **parameters: Any,
) -> Instance:
    r"""Make an instance of a family: `FAMILIES` lists them.

    Parameters
    ----------
    name
        The family.
    n
        Number of requests; None means as many as the paper has.
    seed
        Seed of the random generator. Adversarial families without randomness ignore it.
    memory
        Tokens :math:`M` that the worker holds at most; None means as many as in the paper.
    rate
        Requests per step of a Poisson process of arrivals (of a bounded number per step for
        equal-prompts), or per second where the length of a step is given; None lets all come at
        step 0, or as the family says.
    load
        Sets the rate so that the requests bring this share of the memory-time that passes between
        arrivals: rate = load :math:`\cdot M /` mean :math:`A_i`.
    seconds_per_step
        Length of a step in seconds, for runs on a clock; short steps keep arrivals precise.
    **parameters
        What else the family knows.

    Returns
    -------
    Instance
        The requests, the same for the same seed. Neither `rate` nor `load` changes their lengths.

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
    if name not in FAMILIES:
        raise InstanceError(f"there is no family {name!r}; {nearest(name, FAMILIES)}")
    chosen = FAMILIES[name]
    for parameter in parameters:
        if parameter not in chosen.parameters:
            known = ["n", "seed", "rate", "load", "seconds_per_step", *chosen.parameters]
            raise InstanceError(
                f"family {name} has no parameter {parameter!r}; {nearest(parameter, known)}"
            )
    memory = chosen.memory if memory is None else checked_memory(memory)
    n = chosen.requests if n is None else _whole("n", n, least=1)
    if rate is not None and load is not None:
        raise InstanceError("rate and load are both given; keep one of them")
    rng = np.random.default_rng(_whole("seed", seed, least=0, most=2**63 - 1))
    requests = chosen.draw(rng, n, memory, **parameters)
    fields: dict[str, Any] = dict(zip(FIELDS, requests, strict=False))
    instance = Instance(**fields, memory=memory, name=name, seconds_per_step=seconds_per_step)
    if load is not None:
        if not 0 < load < np.inf:
            raise InstanceError(f"load is {load}, but must be positive")
        rate = load * memory / float(instance.areas.mean())
    elif rate is not None and seconds_per_step is not None:
        rate *= seconds_per_step
    if rate is None:
        return instance
    return instance.replace(arrivals=chosen.arrive(len(instance), rate, rng))


def family_from_text(text: str, memory: int | None = None) -> Instance:
    """Make an instance from ``family:NAME,n=...,seed=...`` with any parameters of `family`."""
    name, parameters = parse_family(text)
    return family(name, memory=memory, **parameters)


def parse_family(text: str) -> tuple[str, dict[str, Any]]:
    """Take ``family:NAME,key=number,...`` apart."""
    name, *assignments = text.removeprefix("family:").split(",")
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        key, _, value = (part.strip() for part in assignment.partition("="))
        try:
            parameters[key] = float(value) if set(value) & set(".eEnN") else int(value)
        except ValueError:
            raise InstanceError(
                f"{text}: {assignment!r} is not understood; write parameters as key=number"
            ) from None
    if "memory" in parameters or "name" in parameters:
        raise InstanceError(
            f"{text}: the memory is not a parameter of a family; pass it separately"
        )
    return name.strip(), parameters


def _whole(name: str, value: Any, least: int, most: int = MAX_TOKENS) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InstanceError(f"{name} is {value!r}, but must be a whole number from {least}")
    if value > most:
        raise InstanceError(f"{name} is {value!r}, but must be at most {most}")
    return int(value)


def _rounded(lengths: FloatArray, longest: int = LONGEST) -> IntArray:
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)


def _uniform(rng: np.random.Generator, n: int, memory: int) -> Requests:
    # U(1, 51) as NumPy reads it: the integers 1 to 50, so that s_max = o_max = 50 holds.
    return rng.integers(1, 51, n), rng.integers(1, 51, n)


def _normal(rng: np.random.Generator, n: int, memory: int) -> Requests:
    return _rounded(rng.normal(25, 8.33, n)), _rounded(rng.normal(25, 8.33, n))


def _binomial(rng: np.random.Generator, n: int, memory: int) -> Requests:
    return rng.binomial(49, 0.5, n) + 1, rng.binomial(49, 0.5, n) + 1


def _exponential(rng: np.random.Generator, n: int, memory: int) -> Requests:
    return _rounded(rng.exponential(5, n)), _rounded(rng.exponential(5, n))


def _mixed(rng: np.random.Generator, n: int, memory: int) -> Requests:
    long = rng.random(n) < 0.2
    prompts = np.where(long, rng.lognormal(math.log(40), 0.25, n), rng.exponential(10, n))
    # U(40, 50) in the same reading: the integers 40 to 49.
    prompts = np.where(prompts > LONGEST, rng.integers(40, 50, n), prompts)
    return _rounded(prompts), _rounded(rng.exponential(5, n))


def _chat_and_summaries(
    rng: np.random.Generator, n: int, memory: int, summaries: float = 0.2
) -> Requests:
    """Draw 80 % chats and 20 % summaries in random order."""
    from scipy.special import betaincinv, ndtri

    if not 0 <= summaries <= 1:
        raise InstanceError(f"summaries is {summaries}, but must be a share from 0 to 1")
    long = round(summaries * n)
    chat = n - long

    def strata(count: int) -> FloatArray:
        return (rng.permutation(count) + rng.random(count)) / count

    def lognormal(median: float, mean: float, count: int) -> FloatArray:
        spread = math.sqrt(2 * math.log(mean / median))
        lengths: FloatArray = median * np.exp(spread * ndtri(strata(count)))
        return lengths

    quantile = strata(chat)
    chat_prompts = 12 * (quantile / (1 - quantile)) ** 0.815
    long_prompts = 4096 * betaincinv(1.881, 1.145, strata(long))
    prompts = np.concatenate([chat_prompts, long_prompts])
    outputs = np.concatenate([lognormal(43, 85.35, chat), lognormal(161, 296.08, long)])
    order = rng.permutation(n)
    return _rounded(prompts, 4096)[order], _rounded(outputs, 4096)[order]


def _equal_prompts(
    rng: np.random.Generator,
    n: int,
    memory: int,
    prompt: int = 1,
    output_least: int = 1,
    output_most: int = 10,
) -> Requests:
    """Draw outputs uniformly between the least and the most; all prompts are the same."""
    prompt = _whole("prompt", prompt, least=0)
    output_least = _whole("output_least", output_least, least=1)
    output_most = _whole("output_most", output_most, least=output_least)
    return np.full(n, prompt), rng.integers(output_least, output_most, n, endpoint=True)


def _lognormal(
    rng: np.random.Generator,
    n: int,
    memory: int,
    prompt_mean: float = 900,
    prompt_cv: float = 1.4,
    prompt_most: int = 16384,
    output_mean: float = 300,
    output_cv: float = 0.9,
    output_most: int = 4096,
) -> Requests:
    """Draw prompts and outputs that reproduce BF-IO Table 1 on 16 workers of 72 slots."""

    def lengths(name: str, mean: float, cv: float, most: int) -> IntArray:
        if not (mean > 0 and cv >= 0 and most >= 1):
            raise InstanceError(
                f"{name} has mean {mean}, cv {cv} and at most {most}, but the mean must be "
                "positive, cv not negative and the most at least 1"
            )
        variance = math.log1p(cv * cv)
        drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)
        return _rounded(drawn, int(most))

    return (
        lengths("prompt", prompt_mean, prompt_cv, prompt_most),
        lengths("output", output_mean, output_cv, output_most),
    )


#: The families by name.
FAMILIES = {
    "uniform": WorkloadFamily(_uniform, 100, 100, "s and o uniform on 1 .. 50", "Sorted-F EC.4.2"),
    "normal": WorkloadFamily(
        _normal, 100, 100, "s and o N(25, 8.33^2) in [1, 50]", "Sorted-F EC.4.2"
    ),
    "binomial": WorkloadFamily(
        _binomial, 100, 100, "s and o 1 + binomial with 49 fair trials", "Sorted-F EC.4.2"
    ),
    "exponential": WorkloadFamily(
        _exponential, 100, 100, "s and o exponential of mean 5 in [1, 50]", "Sorted-F EC.4.2"
    ),
    "mixed": WorkloadFamily(
        _mixed,
        100,
        200,
        "s 80 % exponential of mean 10 and 20 % lognormal about 40, o exponential of mean 5, "
        "all in [1, 50]",
        "Sorted-F EC.4.2",
    ),
    "chat-and-summaries": WorkloadFamily(
        _chat_and_summaries,
        16492,
        2000,
        "80 % short chats and 20 % long summaries",
        "means and medians of the data of Sorted-F Section 7",
    ),
    "equal-prompts": WorkloadFamily(
        _equal_prompts,
        200,
        1000,
        "s the same for all and small against M, o uniform, and a bounded number of arrivals "
        "per step: 1 and 1 .. 10 by default",
        "Jaillet Sections 3 and 5",
        arrive=bounded,
    ),
    "chat": WorkloadFamily(
        chat,
        16492,
        10_000,
        "s lognormal below 500, o gamma below 600: short conversations",
        "means and medians of Jaillet Section 7",
    ),
    "lognormal": WorkloadFamily(
        _lognormal,
        20480,
        24000,
        "s lognormal of mean 900 and cv 1.4, o lognormal of mean 300 and cv 0.9, clipped",
        "figures of BF-IO Table 1 on 16 workers of 72 slots",
    ),
    "sorted-f-theorem-1": WorkloadFamily(
        adversarial.theorem_1,
        64,
        None,
        "M requests of sqrt(M) - 1 and 1 tokens, M^1.5 of 1 and 2: shortest output first fails",
        "Sorted-F Theorem 1",
    ),
    "sorted-f-theorem-ec-1": WorkloadFamily(
        adversarial.theorem_ec_1,
        64,
        None,
        "M requests of 1 and sqrt(M) - 1 tokens, M^1.5 of sqrt(M) and 1: smallest total first "
        "fails",
        "Sorted-F Theorem EC.1",
    ),
    "sorted-f-theorem-1-balanced": WorkloadFamily(
        adversarial.theorem_1_balanced,
        64,
        None,
        "the requests of sorted-f-theorem-1 in the numbers for which shortest output first is "
        "worst: its ratio to the other order grows like M^0.25",
        "after Sorted-F Theorem 1",
    ),
    "sorted-f-theorem-1-long": WorkloadFamily(
        adversarial.theorem_1_long,
        64,
        None,
        "the same with prompts of M - 1 in place of sqrt(M) - 1: the ratio grows like M^0.5",
        "after Sorted-F Theorem 1",
    ),
    "sorted-f-theorem-ec-1-balanced": WorkloadFamily(
        adversarial.theorem_ec_1_balanced,
        64,
        None,
        "the requests of sorted-f-theorem-ec-1 in the numbers for which smallest total first is "
        "worst: its ratio to the other order grows like M^0.25",
        "after Sorted-F Theorem EC.1",
    ),
    "sorted-f-theorem-ec-1-long": WorkloadFamily(
        adversarial.theorem_ec_1_long,
        64,
        None,
        "the same with peaks of M - 1 and M in place of sqrt(M) and sqrt(M) + 1: the ratio "
        "grows like M^0.5",
        "after Sorted-F Theorem EC.1",
    ),
    "sorted-f-example-1": WorkloadFamily(
        adversarial.example_1,
        64,
        None,
        "one request of M - 1 and 1 tokens before many of 1 and 2",
        "Sorted-F Example 1",
    ),
    "jaillet-theorem-6-2": WorkloadFamily(
        adversarial.jaillet,
        64,
        None,
        "one request that fills the memory, and short ones that come shortly before it ends",
        "Jaillet Theorem 6.2",
    ),
    "robust-two-point": WorkloadFamily(
        adversarial.robust_two_point,
        400,
        None,
        "no prompts, outputs short or long: A_min is bounded by (3 - short / long) / 2, where "
        "the share of short ones is long / (short + long)",
        "Robust Theorem 5.1",
    ),
    "robust-theorem-3-4": WorkloadFamily(
        adversarial.robust_theorem_3_4,
        64,
        None,
        "no prompts, outputs short and M / short in so many batches: reserving the longest "
        "output for each costs 3 times H-SF here, not the printed 6",
        "Robust Theorem 3.4",
    ),
    "partition": WorkloadFamily(
        adversarial.partition,
        100,
        20,
        "2 batches can hold all requests, makespan 2",
        "Partition, Sorted-F Theorem EC.2",
    ),
    "partition-no": WorkloadFamily(
        adversarial.partition_no,
        101,
        20,
        "2 batches cannot hold all requests by parity, makespan 3 or more",
        "Partition, Sorted-F Theorem EC.2",
    ),
    "3-partition": WorkloadFamily(
        adversarial.three_partition,
        100,
        30,
        "n / 3 batches of three requests each fill the memory",
        "3-Partition, Sorted-F Theorem 2",
    ),
    "3-partition-no": WorkloadFamily(
        adversarial.three_partition_no,
        99,
        30,
        "n / 3 batches cannot hold all requests by divisibility",
        "3-Partition, Sorted-F Theorem 2",
    ),
}
