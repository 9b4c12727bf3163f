"""Request types: how long the requests of a type are, and how many arrive per second (Fluid)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import as_floats, as_integers, checked_memory, frozen
from optsched.clock import Clock, LinearClock, affine, get_clock
from optsched.errors import ClockError, InstanceError, named, nearest, unreadable
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.files import JSON

_MAX_TOKENS = 10**6  # of a prompt or an output; sums over stages then stay exact
_MAX_RATE = 1e12
_STEP = 1e-6  # seconds; Poisson arrivals are rounded down to it


@checked(InstanceError)
@dataclass(frozen=True, eq=False, repr=False)
class RequestTypes:
    r"""Types of requests: how long they are, and how many of each arrive per second.

    Requests of type :math:`j` pass through stages, one iteration each: stage 0 prefills the prompt,
    stage :math:`k = 1, \dots, l'_j` makes the :math:`k`-th output token, after which the request
    holds :math:`l_j + k` tokens.

    Parameters
    ----------
    prompts, outputs
        Prompt tokens :math:`l_j \ge 0` and output tokens :math:`l'_j \ge 1`, shape (m,).
    rates
        Arrivals per second :math:`\lambda_j > 0`, shape (m,).
    prefill_makes_token
        Whether the prefill makes the first output token, as in the simulators here, so that a
        request has the stages :math:`1, \dots, l'_j` and :math:`l'_j` iterations. In the paper it
        makes none: there are the stages :math:`0, \dots, l'_j`.
    names
        Names of the types: numbers from 1 unless given; "prompt+output" where they are estimated
        or merged.

    Examples
    --------
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> print(types)
    2 types of requests, 2,000 per second
      type       prompt  output  per second  iterations  tokens x iterations
      1              10      10        1000          11                  165
      2              10      20        1000          21                  420
    """

    prompts: IntArray
    outputs: IntArray
    rates: FloatArray
    prefill_makes_token: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("prompts", "outputs"):
            object.__setattr__(self, field, as_integers(field, getattr(self, field)))
        rates = frozen(as_floats("rates", self.rates))
        object.__setattr__(self, "rates", rates)
        count = len(self.prompts)
        names = tuple(self.names) or tuple(str(number + 1) for number in range(count))
        object.__setattr__(self, "names", names)
        if count == 0:
            raise InstanceError("there are no types of requests; pass at least one")
        if not len(self.outputs) == len(names) == count or rates.shape != (count,):
            raise InstanceError(
                f"{count} prompts, {len(self.outputs)} outputs, {rates.size} rates and "
                f"{len(names)} names: there must be one of each per type"
            )
        for field, bad, rule in (
            ("prompts", self._outside(self.prompts, 0), f"from 0 to {_MAX_TOKENS:,}"),
            ("outputs", self._outside(self.outputs, 1), f"from 1 to {_MAX_TOKENS:,}"),
            (
                "rates",
                ~((rates > 0) & (rates <= _MAX_RATE)),
                "a finite number above 0; leave a type without arrivals out (1e12 is the most)",
            ),
        ):
            if bad.any():
                at = int(np.argmax(bad))
                value = getattr(self, field)[at].item()
                word = field.removesuffix("s")
                raise InstanceError(
                    f"type {names[at]}: {word} is {value!r}, but must be {rule}",
                    column=field,
                    value=value,
                )

    @staticmethod
    def _outside(values: IntArray, least: int) -> BoolArray:
        return (values < least) | (values > _MAX_TOKENS)

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        return f"<RequestTypes: {len(self)} types, {self.rates.sum():g} requests per second>"

    def __str__(self) -> str:
        lines = [
            f"{len(self):,} type{'s' * (len(self) > 1)} of requests, "
            f"{self.rates.sum():,g} per second",
            "  type       prompt  output  per second  iterations  tokens x iterations",
        ]
        shown = range(min(len(self), 20))
        lines += [
            f"  {self.names[j]:<10.10}{self.prompts[j]:>7,}{self.outputs[j]:>8,}"
            f"{self.rates[j]:>12.5g}{self.stages[j]:>12,}{self.held_tokens[j]:>21,}"
            for j in shown
        ]
        return "\n".join(lines + [f"  ... and {len(self) - 20:,} more"] * (len(self) > 20))

    @property
    def first_stage(self) -> int:
        """Stage of the prefill: its number is that of the output tokens made by then."""
        return int(self.prefill_makes_token)

    @property
    def stages(self) -> IntArray:
        """Iterations that a request of each type takes, shape (m,)."""
        return self.outputs + 1 - self.first_stage

    @property
    def held_tokens(self) -> IntArray:
        """Tokens held, summed over the stages: :math:`(l'_j + 1)(l_j + l'_j / 2)`, shape (m,)."""
        held: IntArray = stage_tokens(self.prompts, self.first_stage, self.outputs)
        return held

    def work(self, clock: Clock) -> FloatArray:
        """Return the seconds that one request of each type adds to all its iterations, shape (m,).

        For an affine clock :math:`d_1 (l'_j + 1)(l_j + l'_j / 2)`; clocks must be weighted sums.
        """
        return np.array([float(value) for value in self.exact_work(clock)])

    def exact_work(self, clock: Clock) -> list[Fraction]:
        """Return `work` with the clock's coefficients taken as the decimals they are written as."""
        first = self.first_stage
        return [
            stage_work(clock, prompt, first, output, prefill=True)
            for prompt, output in zip(self.prompts.tolist(), self.outputs.tolist(), strict=True)
        ]

    def scaled(self, factor: float) -> RequestTypes:
        """Return the same types with all rates multiplied by a factor."""
        return self.with_rates(self.rates * factor)

    def with_rates(self, rates: FloatArray) -> RequestTypes:
        """Return the same types at other rates, as of another time of day."""
        return RequestTypes(self.prompts, self.outputs, rates, self.prefill_makes_token, self.names)

    def with_one_prompt(self, prompt: int | None = None) -> RequestTypes:
        """Return the types with one prompt for all, those of equal outputs merged.

        The prompt is the one given, or the mean over arrivals, rounded up. Outputs ascend.

        Examples
        --------
        >>> types = RequestTypes([10, 40, 30], [8, 5, 8], [1, 2, 1]).with_one_prompt()
        >>> types.prompts, types.outputs, types.rates
        (array([30, 30]), array([5, 8]), array([2., 2.]))
        """
        if prompt is None:
            prompt = int(np.ceil(self.prompts @ self.rates / self.rates.sum() - 1e-9))
        outputs, group = np.unique(self.outputs, return_inverse=True)
        rates = np.bincount(group, self.rates).astype(np.float64)
        prompts = np.full(len(outputs), prompt)
        return RequestTypes(
            prompts, outputs, rates, self.prefill_makes_token, _names(prompts, outputs)
        )

    @classmethod
    @checked(InstanceError)
    def from_instance(
        cls, instance: Instance, classes: int | None = None, rate: float | None = None
    ) -> RequestTypes:
        """Estimate types, by ascending output, from requests whose prefill makes the first token.

        Without `classes` every pair of lengths is a type. Otherwise the requests are sorted by
        output and cut into that many classes of equal size. A class gets its mean output and the
        prompt with which its requests hold as many tokens, summed over iterations, as they do in
        the mean, both rounded: load and memory are kept up to rounding, whereas a mean prompt
        would ignore that long outputs count more than proportionally.

        Parameters
        ----------
        instance
            The requests.
        classes
            Number of classes.
        rate
            Requests per second of all types; None for that of the arrivals, which needs their
            steps in seconds.

        Raises
        ------
        InstanceError
            If the rate is not known, or there are fewer outputs than classes.

        Examples
        --------
        >>> from optsched import Instance
        >>> instance = Instance([5, 5, 9, 9], [2, 2, 30, 40], memory=100)
        >>> types = RequestTypes.from_instance(instance, classes=2, rate=8)
        >>> types.prompts, types.outputs, types.rates
        (array([5, 9]), array([ 2, 35]), array([4., 4.]))
        """
        rate = _rate(instance) if rate is None else rate
        if classes is None:
            pairs = np.stack([instance.outputs, instance.prompts], axis=1)
            kinds, counts = np.unique(pairs, axis=0, return_counts=True)
            prompts, outputs = kinds[:, 1], kinds[:, 0]
        else:
            parts = output_classes(instance, classes)
            counts = np.array([len(part) for part in parts])
            outputs = np.array([np.rint(instance.outputs[part].mean()) for part in parts])
            held = np.array([instance.areas[part].mean() for part in parts])
            prompts = np.maximum(np.rint(held / outputs - (outputs + 1) / 2), 0)
        names = _names(prompts, outputs)
        return cls(prompts, outputs, rate * counts / counts.sum(), True, names)


def output_classes(instance: Instance, classes: int) -> list[IntArray]:
    """Sort the requests by output, and cut them into classes of equal size."""
    if not 1 <= classes <= len(instance):
        raise InstanceError(
            f"{classes} classes of {len(instance)} requests; choose 1 to {len(instance)}"
        )
    return np.array_split(np.argsort(instance.outputs, kind="stable"), classes)


def _names(prompts: IntArray, outputs: IntArray) -> tuple[str, ...]:
    return tuple(f"{int(a)}+{int(b)}" for a, b in zip(prompts, outputs, strict=True))


def _rate(instance: Instance) -> float:
    span = int(instance.arrivals[-1] - instance.arrivals[0])
    if instance.seconds_per_step is None or span == 0:
        raise InstanceError(
            f"{instance.name} does not say how many requests arrive per second, because its "
            "arrivals are not in seconds or all at once; pass the requests per second (rate)"
        )
    return (len(instance) - 1) / (span * instance.seconds_per_step)


def stage_tokens(prompt: Any, first: Any, last: Any) -> Any:
    """Sum the tokens held after the stages from `first` to `last`, both included; exact."""
    count = last - first + 1
    return count * prompt + count * (first + last) // 2


def stage_work(clock: Clock, prompt: int, first: int, last: int, *, prefill: bool) -> Fraction:
    """Sum what a request adds to the time of its iterations from stage `first` to `last`."""
    if not isinstance(clock, LinearClock):
        raise ClockError(
            f"clock {clock.name}: the fluid model needs a clock that is a weighted sum, not a "
            "function; fit one"
        )
    if clock.hinges or clock.ramps or clock.mixed_tokens:
        raise ClockError(
            f"clock {clock.name} has hinges, ramps or mixed tokens, but in the fluid model a "
            "request takes the same time in any batch; fit one without (hinges=(), ramps=(), "
            "mixed=False)"
        )
    decodes = last - first + 1 - prefill
    held = stage_tokens(prompt, first, last)
    resident = stage_tokens(prompt, first + prefill, last) - decodes
    counts = (prompt * prefill, decodes, resident, prompt**2 * prefill, held)
    return sum(
        (
            decimal(getattr(clock, field)) * count
            for field, count in zip(_COUNTS, counts, strict=True)
        ),
        Fraction(0),
    )


_TYPE_KEYS = ("prompt", "output", "rate", "name")
_COUNTS = ("prefill_tokens", "decode_requests", "resident_tokens", "squared_prompts", "held_tokens")


def decimal(number: float) -> Fraction:
    """Take a number as the decimal it is written as: 0.1 is one tenth."""
    return Fraction(repr(float(number)))


def poisson_requests(
    types: RequestTypes, seconds: float, memory: int, *, seed: int = 0
) -> Instance:
    r"""Draw the requests that arrive in a given time, each type by a Poisson process of its own.

    Parameters
    ----------
    types
        Lengths and rates. Where their prefill makes no token, as in the paper, a request of type
        :math:`(l, l')` gets :math:`l - 1` prompt and :math:`l' + 1` output tokens: so it takes
        :math:`l' + 1` batches and holds :math:`l, l + 1, \dots, l + l'` tokens in them.
    seconds
        How long requests arrive; steps are microseconds.
    memory
        Memory of the worker in tokens.
    seed
        Seed of the random generator.

    Raises
    ------
    InstanceError
        If the time is not positive, no request arrives in it, or a type without prompt tokens has a
        prefill that makes no token.

    Examples
    --------
    >>> from optsched import RequestTypes
    >>> types = RequestTypes([10, 10], [10, 20], [100, 100])
    >>> requests = poisson_requests(types, 1.0, memory=10_000, seed=1)
    >>> len(requests), set(requests.prompts.tolist()), set(requests.outputs.tolist())
    (194, {9}, {11, 21})
    """
    if not 0 < seconds < np.inf:
        raise InstanceError(f"seconds is {seconds}, but must be a number above 0")
    shift = 1 - types.first_stage
    if (types.prompts < shift).any():
        raise InstanceError(
            "a type has no prompt tokens, so that its prefill holds none and makes none; give "
            "it one, or set prefill_makes_token"
        )
    rng = np.random.default_rng(seed)
    counts = rng.poisson(types.rates * seconds)
    if counts.sum() == 0:
        raise InstanceError(f"no request arrives in {seconds:g} s; pass more time, or higher rates")
    kinds = np.repeat(np.arange(len(types)), counts)
    arrivals = np.floor(rng.random(len(kinds)) * (seconds / _STEP)).astype(np.int64)
    order = np.argsort(arrivals, kind="stable")
    return Instance(
        types.prompts[kinds[order]] - shift,
        types.outputs[kinds[order]] + shift,
        memory,
        arrivals[order],
        name=f"{len(types)} types, Poisson",
        seconds_per_step=_STEP,
    )


def read_types(path: str | Path) -> tuple[RequestTypes, Clock | None, int | None]:
    """Read types from a TOML file, and the clock and memory that it gives; None for what it omits.

    The file has a table ``[[type]]`` for each type, with `prompt`, `output`, `rate` and optionally
    `name`; and may have a clock, either as ``clock = "NAME"`` or as `d0` and `d1`, the `memory` in
    tokens, and `prefill_makes_token`.

    Raises
    ------
    InstanceError, ClockError
        If the file is not TOML, or an entry or the clock is missing, unknown or out of range.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as reason:
        raise InstanceError(unreadable(path, reason)) from None
    except (ValueError, RecursionError) as reason:
        raise InstanceError(f"{path} is not valid TOML: {reason}") from None
    known = ("d0", "d1", "clock", "memory", "prefill_makes_token", "type")
    _check_keys(content, known, f"{path}")
    tables = content.get("type", [])
    if not isinstance(tables, list) or not tables:
        raise InstanceError(
            f"{path} has no types; add a table [[type]] with prompt, output and rate for each"
        )
    for number, table in enumerate(tables, start=1):
        where = f"{path}, [[type]] number {number}"
        if not isinstance(table, dict):
            raise InstanceError(f"{where} is not a table; write prompt, output and rate under it")
        _check_keys(table, _TYPE_KEYS, where)
        for key in _TYPE_KEYS[:3]:
            value = table.get(key)
            if not isinstance(value, int | float) or isinstance(value, bool):
                what = f"{key} is {value!r}, no number" if key in table else f"{key} is missing"
                raise InstanceError(f"{where}: {what}; write {key} = NUMBER", column=key)
            if key != "rate" and not (isinstance(value, int) or value.is_integer()):
                raise InstanceError(f"{where}: {key} is {value}, but must be whole", column=key)
    flag = content.get("prefill_makes_token", False)
    if not isinstance(flag, bool):
        raise InstanceError(f"{path}: prefill_makes_token is {flag!r}, but must be true or false")
    columns = {key: np.array([table[key] for table in tables]) for key in _TYPE_KEYS[:3]}
    with named(path):
        types = RequestTypes(
            columns["prompt"],
            columns["output"],
            columns["rate"],
            prefill_makes_token=flag,
            names=tuple(str(table.get("name", at)) for at, table in enumerate(tables, start=1)),
        )
        memory = checked_memory(content["memory"]) if "memory" in content else None
        return types, _clock(content, path), memory


def _check_keys(table: dict[str, object], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise InstanceError(f"{where}: unknown entry {key!r}: {nearest(key, known)}")


def _clock(content: JSON, path: str | Path) -> Clock | None:
    given = {key: content[key] for key in ("d0", "d1") if key in content}
    if "clock" in content:
        if given:
            raise InstanceError(f"{path} has both a clock and d0 or d1; leave one of them out")
        return get_clock(content["clock"])
    if not given:
        return None
    if len(given) == 1:
        raise InstanceError(f"{path} has {next(iter(given))} alone; give both d0 and d1")
    return affine(given["d0"], given["d1"])
