"""Clocks: how long a batch takes, from what is in it."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.aside import untimed
from optsched._internal.files import read_object, write_object
from optsched.clock import hardware as hardware
from optsched.errors import ClockError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.files import JSON


def measured_batches(
    batches: str | Path | pd.DataFrame, counts: tuple[str, ...], least: int
) -> tuple[FloatArray, FloatArray]:
    """Return the counts and the seconds of measured batches."""
    where, table = "the table", cast("Mapping[str, Sequence[Any]]", batches)
    if isinstance(batches, (str, PathLike)):
        where, table = str(batches), _table(Path(batches))
    names, columns = (*counts, "seconds"), []
    for name in names:
        if name not in table:
            raise ClockError(
                f"{where} has no column {name}; a row per batch needs {', '.join(names)}"
            )
        cells = list(table[name])
        numbers = np.array([_number(cell) for cell in cells], dtype=np.float64)
        wrong = ~(np.isfinite(numbers) & (numbers >= 0) & ((numbers > 0) | (name != "seconds")))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ClockError(
                f"{where}, batch {row}: {name} is {cells[row]}, but must be a number "
                f"{'above' if name == 'seconds' else 'from'} 0"
            )
        columns.append(numbers)
    if len(columns[0]) < least:
        raise ClockError(
            f"{where} has {len(columns[0])} batches, but a fit needs {least}; measure more, or "
            "leave hinges out"
        )
    return np.column_stack(columns[:-1]), columns[-1]


def _table(path: Path) -> Mapping[str, Sequence[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            cells = list(rows)
    except (OSError, ValueError, csv.Error) as error:
        raise ClockError(f"cannot read batches from {path}: {error}") from None
    return {name: [row[name] for row in cells] for name in rows.fieldnames or ()}


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")


class BatchContent(NamedTuple):
    """The contents of a batch that determine its duration.

    Attributes
    ----------
    prefill_tokens
        Prompt tokens prefilled in the batch; of a prompt in chunks, those of this chunk.
    decode_requests, resident_tokens
        Requests that were prefilled earlier and make one token each, and their tokens in the KV
        cache before the batch: prompts and tokens made.
    squared_prompts
        Sum of the squares of the prompts prefilled. A chunk counts the square of what is prefilled
        after it less that before it, so that chunks add up to the prompt.
    held_tokens
        Tokens in the KV cache of all requests of the batch when it ends, those made in it included.
    """

    prefill_tokens: float
    decode_requests: float
    resident_tokens: float
    squared_prompts: float
    held_tokens: float


_SUMMED = ("constant", *BatchContent._fields, "mixed_tokens", "hinges", "ramps")
#: The least batches there are: one prompt token prefilled, and one request's second token.
_LEAST_PREFILL = BatchContent(1, 0, 0, 1, 1)
_LEAST_DECODE = BatchContent(0, 1, 1, 0, 2)
_FITTED = BatchContent._fields[:4]  # held tokens are those prefilled and resident, nearly
_UNITS = ("s", "steps")
_MIN = 1e-12  # of a batch: below it time would hardly pass at all
_ROUNDING = 1e-9  # of a batch: below it a coefficient is none
_BESIDE = 20  # batches at least on each side of a hinge
_REFITS = 5  # rounds of a fit, after which the coefficients hardly change
_MOST_OUTLYING = 10  # times as long as fitted: beyond that a batch weighs no more
_MAX = 1e12  # beyond it sums of many batches would leave the numbers there are


@dataclass(frozen=True)
class LinearClock:
    r"""A clock that is a weighted sum of the counts of `BatchContent`.

    A batch of prefill tokens :math:`P`, decoding requests :math:`D`, :math:`T = P + D`, resident
    tokens :math:`R`, squared prompts :math:`Q` and held tokens :math:`H` takes

    .. math:: c_0 + c_1 P + c_2 D + c_3 R + c_4 Q + c_5 H + m R [P > 0]
        + \sum_k w_k \max(T - t_k, 0) + \sum_k v_k \min(T, u_k).

    Ranks that share the experts of a model wait for each other in every batch: where a part
    :math:`s` of the clock :math:`t` is `shared`, their batches :math:`b_1, b_2, \dots` all take

    .. math:: \max_g \bigl(t(b_g) - s(b_g)\bigr) + s\bigl(\textstyle\sum_g b_g\bigr),

    and a rank without requests runs along and adds nothing.

    Parameters
    ----------
    name
        Name in tables and messages.
    constant
        Time that every batch takes.
    prefill_tokens, decode_requests, resident_tokens, squared_prompts, held_tokens
        Time per unit of the count of that name, at least 0.
    unit
        Unit of the time: "s" or "steps".
    mixed_tokens
        Additional time per resident token in a batch that prefills as well: attention kernels read
        the KV cache of decoding requests more slowly beside a prompt.
    hinges, ramps
        Pairs of a number of batch tokens (:math:`T`) and the additional time that each token beyond
        it, or up to it, takes; up to it as where a mixture of experts reads more weights for more
        tokens.
    fitted
        Of a clock that was fitted: each count of batches with the least and the most that was
        measured; "tokens" are those prefilled and requests decoded. Beyond that it is a guess.
    shared
        The part of the clock that goes by the counts of all ranks together, where several
        engines share experts; None where engines do not wait for each other.

    Examples
    --------
    >>> clock = LinearClock("mine", constant=0.01, prefill_tokens=0.0001)
    >>> clock(BatchContent(200, 3, 90, 40000, 293))
    0.03
    >>> print(clock)
    mine: 0.01 + 0.0001 prefill_tokens s
    >>> LinearClock.from_json(clock.to_json()) == clock
    True
    """

    name: str
    constant: float = 0.0
    prefill_tokens: float = 0.0
    decode_requests: float = 0.0
    resident_tokens: float = 0.0
    squared_prompts: float = 0.0
    held_tokens: float = 0.0
    unit: str = "s"
    mixed_tokens: float = 0.0
    hinges: tuple[tuple[float, float], ...] = ()
    ramps: tuple[tuple[float, float], ...] = ()
    fitted: tuple[tuple[str, float, float], ...] = dataclasses.field(default=(), compare=False)
    shared: LinearClock | None = None

    def __post_init__(self) -> None:
        for name in ("hinges", "ramps"):
            object.__setattr__(self, name, _checked_pairs(self.name, name, getattr(self, name)))
        object.__setattr__(self, "fitted", _checked_ranges(self.name, self.fitted))
        for field in ("constant", *BatchContent._fields, "mixed_tokens"):
            value = getattr(self, field)
            if not isinstance(value, int | float | np.number) or not 0 <= value <= _MAX:
                raise ClockError(
                    f"clock {self.name}: the coefficient {field} is {value!r}, but must be a "
                    f"number from 0 to {_MAX:.0e}, so that no batch takes less than no time"
                )
            object.__setattr__(self, field, float(value))
        for least, what in ((_LEAST_PREFILL, "prefills"), (_LEAST_DECODE, "decodes")):
            if not self._seconds(least) >= _MIN:
                raise ClockError(
                    f"clock {self.name}: a batch that only {what} would take no time, or less than "
                    f"{_MIN:g} {self.unit}; give a constant above that"
                )
        if (part := self.shared) is not None and not (
            isinstance(part, LinearClock)
            and (part.coefficients <= self.coefficients).all()
            and part.mixed_tokens <= self.mixed_tokens
            and set(part.hinges) <= {*self.hinges}
            and set(part.ramps) <= {*self.ramps}
        ):
            raise ClockError(
                f"clock {self.name}: shared is {part}, but must be a part of the clock: none of "
                "its coefficients above the clock's, all of its hinges and ramps among them"
            )

    @property
    def coefficients(self) -> FloatArray:
        """The constant and the coefficients of the counts, without what is added, shape (6,)."""
        fields = ("constant", *BatchContent._fields)
        return np.array([getattr(self, field) for field in fields], dtype=np.float64)

    def __call__(self, batch: BatchContent) -> float:
        """Return the time that a batch takes."""
        return _positive(self, self._seconds(batch), batch)

    def _seconds(self, batch: BatchContent) -> float:
        time: float = self.constant
        for field, count in zip(batch._fields, batch, strict=True):
            time += getattr(self, field) * count
        if batch.prefill_tokens > 0:
            time += self.mixed_tokens * batch.resident_tokens
        tokens = batch.prefill_tokens + batch.decode_requests
        for hinge, slope in self.hinges:
            time += slope * max(tokens - hinge, 0)
        for most, slope in self.ramps:
            time += slope * min(tokens, most)
        return time

    def together(self, batches: Sequence[BatchContent]) -> float:
        """Return how long batches take that ranks begin at once, until the slowest is done."""
        part = self.shared
        if part is None:
            return max(map(self, batches))
        alone = max(self(batch) - part(batch) for batch in batches)
        return alone + part(BatchContent(*map(sum, zip(*batches, strict=True))))

    def with_shared(self, part: LinearClock) -> LinearClock:
        """Return the clock of ranks that take this time each, and the part together."""
        whole = {field: getattr(self, field) + getattr(part, field) for field in _SUMMED}
        return dataclasses.replace(self, **whole, shared=part)

    def scaled(self, scale: float, constant: float = 0.0) -> LinearClock:
        """Return the clock with all times multiplied, and more or less time for every batch."""
        parts: dict[str, Any] = {"constant": scale * self.constant + constant}
        for field in (*BatchContent._fields, "mixed_tokens"):
            parts[field] = scale * getattr(self, field)
        for field in ("hinges", "ramps"):
            parts[field] = [(tokens, scale * slope) for tokens, slope in getattr(self, field)]
        shared = None if self.shared is None else self.shared.scaled(scale)
        return dataclasses.replace(self, **parts, shared=shared)

    def beyond(self, contents: IntArray) -> str | None:
        """Say where batches leave the range that the clock was fitted on; None: nowhere.

        `contents` has a row of `BatchContent` for each batch.
        """
        columns = dict(zip(BatchContent._fields, contents.T, strict=True))
        columns["tokens"] = contents[:, 0] + contents[:, 1]
        outside, where = np.zeros(len(contents), dtype=bool), []
        for name, least, most in self.fitted if len(contents) else ():
            values = columns[name]
            if (wrong := (values < least) | (values > most)).any():
                outside |= wrong
                span = f"{values.min():,} to {values.max():,}"
                where.append(f"{name} {span} (fitted on {least:,g} to {most:,g})")
        if not where:
            return None
        return (
            f"{outside.mean():.1%} of the batches leave what clock {self.name} was fitted on, and "
            f"are guesses: {', '.join(where)}"
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the clock as JSON, and write it to `path` if one is given."""
        return write_object(dataclasses.asdict(self), path)

    @classmethod
    def from_json(cls, source: str | Path) -> LinearClock:
        """Read a clock from a JSON file or from JSON text; weights that it does not name are 0."""
        content, where = read_object(source, ClockError, "a name and coefficients")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in content:
            if key not in known:
                raise ClockError(f"{where}: unknown key {key!r}: {nearest(key, known)}")
        if not isinstance(content.get("name"), str) or content.get("unit", "s") not in _UNITS:
            raise ClockError(f"{where}: a clock needs a name, and the unit s or steps")
        if (part := content.get("shared")) is not None:
            content["shared"] = cls.from_json(json.dumps(part))
        return cls(**content)

    @classmethod
    def fit(
        cls,
        batches: str | Path | pd.DataFrame,
        name: str = "fitted",
        *,
        hinges: Sequence[float] = (64, 128, 256, 512),
        ramps: Sequence[float] = (4, 16, 48),
        mixed: bool = True,
    ) -> ClockFit:
        """Fit a clock to measured batches.

        Coefficients minimise the squared errors, as shares of the fitted times, over every second
        batch, none of them negative; the errors reported are those on the others. Hinges and ramps
        with hardly a batch on one side are left out: no data would tell them from a constant.

        Parameters
        ----------
        batches
            A table, or a CSV file: columns prefill_tokens, decode_requests, resident_tokens,
            squared_prompts and seconds, one row per batch; other columns are ignored.
        hinges, ramps
            Numbers of batch tokens beyond which, or up to which, a token may take longer. Without
            these and `mixed` the clock is a plain sum.
        mixed
            Whether resident tokens may take longer in a batch that prefills as well.

        Raises
        ------
        ClockError
            If there are too few batches, a column is missing, or a value is invalid.

        Examples
        --------
        >>> import numpy as np, pandas as pd
        >>> tokens = np.arange(1, 101)
        >>> table = pd.DataFrame({"prefill_tokens": tokens, "seconds": 0.02 + 0.001 * tokens})
        >>> table[["decode_requests", "resident_tokens", "squared_prompts"]] = 0
        >>> fit = LinearClock.fit(table, "mine", hinges=())
        >>> round(fit.clock.constant, 6), round(fit.clock.prefill_tokens, 6), abs(fit.bias) < 1e-9
        (0.02, 0.001, True)
        """
        with untimed():
            from scipy.optimize import nnls

        counts, seconds = measured_batches(
            batches, _FITTED, 10 * (1 + len(_FITTED) + len(hinges) + len(ramps))
        )
        tokens = counts[:, 0] + counts[:, 1]
        hinges, ramps = (
            [at for at in each if _BESIDE <= (tokens < at).sum() <= len(tokens) - _BESIDE]
            for each in (hinges, ramps)
        )
        beside = counts[:, 2] * (counts[:, 0] > 0) * mixed
        bends = [np.maximum(tokens - hinge, 0) for hinge in hinges]
        bends += [np.minimum(tokens, most) for most in ramps]
        table = np.column_stack([np.ones(len(seconds)), counts, beside, *bends])
        rows, times = table[::2], seconds[::2]
        fitted = times  # of measured times alone, those that happened to be long would count less
        for _ in range(_REFITS):
            shares = rows / fitted[:, None]
            scale = np.maximum(np.linalg.norm(shares, axis=0), np.finfo(float).tiny)
            found = nnls(shares / scale, times / fitted)[0] / scale
            fitted = np.maximum(rows @ found, times / _MOST_OUTLYING)
        found[found * rows.max(axis=0) < _ROUNDING * times.mean()] = 0.0
        weights = [float(f"{weight:.6g}") for weight in found]
        constant, prefill, decode, resident, squares, more, *slopes = weights
        left = iter(slopes)
        bent, ramped = (
            tuple(pair for pair in zip(tokens, left, strict=False) if pair[1])
            for tokens in (hinges, ramps)
        )
        plain = cls(name, constant, prefill, decode, resident, squares)
        named = [*zip(_FITTED, counts.T, strict=True), ("tokens", tokens)]
        spans = tuple((name, each.min().item(), each.max().item()) for name, each in named)
        clock = dataclasses.replace(
            plain, mixed_tokens=more, hinges=bent, ramps=ramped, fitted=spans
        )
        judged = seconds[1::2]
        errors = table[1::2] @ np.array(weights) - judged
        shares = np.abs(errors) / judged
        return ClockFit(
            clock,
            float(errors.sum() / judged.sum()),
            float(shares.mean()),
            float(np.quantile(shares, 0.95)),
            len(judged),
        )

    def __str__(self) -> str:
        terms = [f"{self.constant:g}"] if self.constant else []
        for field in BatchContent._fields:
            if coefficient := getattr(self, field):
                terms.append(f"{coefficient:g} {field}")
        if self.mixed_tokens:
            terms.append(f"{self.mixed_tokens:g} resident_tokens beside a prompt")
        terms += [f"{slope:g} (batch tokens beyond {hinge:g})" for hinge, slope in self.hinges]
        terms += [f"{slope:g} (batch tokens up to {most:g})" for most, slope in self.ramps]
        said = f"{self.name}: {' + '.join(terms)} {self.unit}"
        return said if self.shared is None else f"{said}; of all ranks together, {self.shared}"


class ClockFit(NamedTuple):
    """A clock fitted to batches or to a run, and its errors on those that it was not fitted to.

    Attributes
    ----------
    bias
        Error of the total time as a share, above 0 where the clock is too slow. It matters most,
        since a queue near saturation amplifies it.
    mean_error, high_error
        Mean and 95th percentile of the absolute relative errors of single batches or requests.
    judged, of
        Number of batches or requests that the errors were taken over, and which of them it is.
    """

    clock: LinearClock
    bias: float
    mean_error: float
    high_error: float
    judged: int
    of: str = "batches"

    def with_shared(self, part: ClockFit) -> ClockFit:
        """Return the fit of ranks that share a part, with the errors of what fits worse."""
        worse = max(self, part, key=lambda fit: fit.mean_error)
        return worse._replace(clock=self.clock.with_shared(part.clock))

    def __str__(self) -> str:
        return (
            f"{self.clock}\nbias {self.bias:+.2%}, mean error {self.mean_error:.2%}, 95 % of the "
            f"errors below {self.high_error:.2%} (on {self.judged:,} {self.of} that were not "
            "fitted)"
        )


def _checked_pairs(name: str, what: str, given: object) -> tuple[tuple[float, float], ...]:
    """Return hinges or ramps as pairs of numbers; refuse anything else."""
    checked = []
    if not isinstance(given, Iterable):
        raise ClockError(f"clock {name}: {what} are {given!r}, but must be a list of pairs")
    for pair in given:
        try:
            tokens, slope = (float(number) for number in pair)
        except (TypeError, ValueError):
            tokens = slope = math.nan
        if not (0 <= tokens <= _MAX and 0 <= slope <= _MAX):
            raise ClockError(
                f"clock {name}: the {what[:-1]} {pair!r} must be two numbers, neither of them "
                "negative: batch tokens, and the time that each further token takes"
            )
        checked.append((tokens, slope))
    return tuple(checked)


def _checked_ranges(name: str, given: object) -> tuple[tuple[str, float, float], ...]:
    """Return the ranges of counts that a clock was fitted on; refuse anything else."""
    ranges = []
    for each in given if isinstance(given, Iterable) else [given]:
        try:
            count, least, most = cast("tuple[str, float, float]", each)
            good = count in (*BatchContent._fields, "tokens") and 0 <= float(least) <= float(most)
        except (TypeError, ValueError):
            good = False
        if not good:
            raise ClockError(
                f"clock {name}: fitted holds {each!r}, but must be a list of counts, each with its "
                'least and its most, such as ["prefill_tokens", 0, 2048]'
            )
        ranges.append((count, float(least), float(most)))
    return tuple(ranges)


@checked(ClockError)
@dataclass(frozen=True)
class FunctionClock:
    """A clock that is your own function; slower, since it runs once per batch in Python.

    Parameters
    ----------
    function
        Returns the time of a batch from its `BatchContent`.
    name, unit
        As of `LinearClock`.

    Examples
    --------
    >>> clock = FunctionClock(lambda batch: 0.01 + 1e-4 * max(batch.prefill_tokens, 64))
    >>> clock(BatchContent(10, 3, 90, 100, 103))
    0.0164
    """

    function: Callable[[BatchContent], float]
    name: str = "function"
    unit: str = "s"

    @property
    def coefficients(self) -> None:
        """None, because the clock is not a weighted sum."""
        return None

    def __call__(self, batch: BatchContent) -> float:
        """Return the time that a batch takes."""
        return _positive(self, self.function(batch), batch)

    def __str__(self) -> str:
        return f"{self.name}: a function of the batch, {self.unit}"


Clock = LinearClock | FunctionClock

#: The clock of hindsight programs and bounds: every batch takes one step.
UNIT = LinearClock("unit", constant=1, unit="steps")


def affine(d0: float, d1: float) -> LinearClock:
    r"""Make the clock of Fluid Eq. (1)."""
    return LinearClock(f"affine:{d0!r},{d1!r}", constant=d0, held_tokens=d1)


def get_clock(clock: str | Clock | Callable[[BatchContent], float]) -> Clock:
    """Look a clock up by name, or take one as it is.

    Parameters
    ----------
    clock
        "unit"; "affine:D0,D1" with seconds per batch and per token held; the name of a profiled
        model and its GPUs; a JSON file that `LinearClock.to_json` wrote; a clock; or a function of
        a `BatchContent`.

    Examples
    --------
    >>> get_clock("affine:0.01,0.0001")(BatchContent(200, 3, 90, 40000, 293))
    0.0393
    >>> print(get_clock("llama-2-7b-a100"))
    llama-2-7b-a100: 0.00851366 + 6.02369e-05 prefill_tokens + 5.77148e-05 decode_requests
    + 2.71606e-07 resident_tokens + 6.36658e-09 squared_prompts s
    """
    if isinstance(clock, LinearClock | FunctionClock):
        return clock
    if callable(clock):
        return FunctionClock(clock, getattr(clock, "__name__", type(clock).__name__))
    if not isinstance(clock, str):
        raise ClockError(
            f"{clock!r} is not a clock; pass a name, a clock or a function of the batch"
        )
    if clock.endswith(".json"):
        return LinearClock.from_json(Path(clock))
    kind, colon, numbers = clock.partition(":")
    if kind == "affine":
        return _parse_affine(clock, numbers)
    known = {"unit": UNIT} | _profiled()
    if colon or clock not in known:
        raise ClockError(f"unknown clock {clock!r}: {nearest(kind, [*known, 'affine:D0,D1'])}")
    return known[clock]


def _parse_affine(text: str, numbers: str) -> LinearClock:
    try:
        d0, d1 = (float(number) for number in numbers.split(","))
    except ValueError:
        raise ClockError(
            f"clock {text!r}: write affine:D0,D1 with two numbers, seconds per batch and seconds "
            "per token held, such as affine:0.0085,2.7e-7"
        ) from None
    return affine(d0, d1)


def clock_of(model: str, gpu: str, gpus: int) -> str:
    """Return the name of the most exact profiled clock of a model on its GPUs, or refuse."""
    known = {
        f"{entry['model']} on {entry['gpus']} {entry['gpu']}": name
        for name, entry in clock_facts().items()
    }
    asked = f"{model} on {gpus} {gpu}"
    if asked not in known:
        raise ClockError(
            f"clock is not known of {asked}; {nearest(asked, known)} (optsched clock lists all); "
            "pass one of them, a file that optsched clock fit made, or unit to count in steps"
        )
    return known[asked]


@functools.cache
def clock_facts() -> dict[str, JSON]:
    """Return the facts of all profiled clocks by name: what, where from, how good, coefficients."""
    clocks: dict[str, JSON] = hardware.packaged("batch_time")["clocks"]
    return clocks


@functools.cache
def _profiled() -> dict[str, LinearClock]:
    fields = [field.name for field in dataclasses.fields(LinearClock)]
    return {
        name: LinearClock(name, **{field: entry[field] for field in fields if field in entry})
        for name, entry in clock_facts().items()
    }


def _positive(clock: Clock, time: float, batch: BatchContent) -> float:
    try:
        good = 0 < time < math.inf
    except (TypeError, ValueError):
        good = False
    if not good:
        counts = ", ".join(f"{count:g} {field}" for field, count in batch._asdict().items())
        raise ClockError(
            f"clock {clock.name}: a batch with {counts} takes {time!r} {clock.unit}, but must take "
            "a finite time above 0; correct the clock"
        )
    return float(time)
