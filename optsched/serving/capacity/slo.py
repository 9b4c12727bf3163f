"""Service level objectives: what they ask of requests, read from one line of text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.numbers import proven
from optsched.errors import OptschedError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.problem.instance import Instance

METRICS = ("latency", "ttft", "tpot")
ROUNDING = 1e-9  # relative, on a clock: times are sums of many batches
_FORMS = (
    "write METRIC:STATISTIC<=VALUE, such as ttft:p99<=2s, tpot:mean<=50ms or latency:max<=40steps, "
    "or within:ttft<=1s&tpot<=80ms:99%"
)
_LIMIT = re.compile(r"<=(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)(ms|steps?|s|)")
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{0,15})?|\.\d{1,15}")


class Times(NamedTuple):
    """What requests waited, shape (n,): NaN where unfinished, and TPOT for single tokens, too.

    They are compared with limits exactly; on a clock they are rounded down for that (`ROUNDING`).
    """

    latency: FloatArray
    ttft: FloatArray
    tpot: FloatArray


@dataclass(frozen=True)
class Slo:
    """A service level objective.

    ``METRIC:STATISTIC<=VALUE`` limits the `latency`, `ttft` (time to first token) or `tpot` (time
    per output token after the first) of the requests: their `mean`, their `max`, or a percentile
    such as `p99`, which says that at least 99 % of them have at most VALUE.
    ``within:CONDITION&CONDITION:99%`` asks that 99 % of the requests meet all conditions, such as
    ``ttft<=1s``. With ``TENANT/`` before it an objective is about the requests whose labels begin
    with it. Values carry their unit, ``s``, ``ms`` or ``steps``; without one they are seconds on a
    clock, and refused elsewhere. `limits` are in seconds or in steps.

    A request with a single token has no TPOT: ``tpot:...`` leaves it out, ``within`` counts the
    condition as met. A request that never completes meets nothing.

    Raises
    ------
    OptschedError
        If the text is none of these.

    Examples
    --------
    >>> from optsched import Slo
    >>> slo = Slo("within:ttft<=1s&tpot<=80ms:99%")
    >>> slo.limits, slo.unit, slo.share, slo.misses(1000)
    ({'ttft': 1.0, 'tpot': 0.08}, 's', Fraction(99, 100), 10)
    >>> Slo("acme/ttft:p99<=40steps").tenant
    'acme'
    """

    text: str
    tenant: str | None = field(init=False)
    limits: dict[str, float] = field(init=False, compare=False)
    share: Fraction | None = field(init=False)  # of the requests; None for a mean
    unit: str | None = field(init=False)  # "s" or "steps"; None where the text names none

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise OptschedError(f"an objective is {shown(self.text)}, but must be a text; {_FORMS}")
        text = re.sub(r"\s", "", self.text)
        tenant, slash, rest = text.rpartition("/")
        parts = rest.split(":")
        if len(parts) == 3 and parts[0] == "within":
            conditions = parts[1].split("&")
            share: Fraction | None = self._percent(parts[2].removesuffix("%"))
        elif len(parts) == 2 and "<=" in parts[1]:
            statistic, sign, value = parts[1].partition("<=")
            conditions = [f"{parts[0]}{sign}{value}"]
            share = self._share(statistic)
        else:
            raise self._wrong(f"has the wrong form; {_FORMS}")
        found = [self._limit(condition) for condition in conditions]
        limits, units = {metric: limit for metric, limit, _ in found}, {unit for *_, unit in found}
        if len(limits) < len(conditions):
            raise self._wrong("limits a metric twice; keep the smaller limit")
        if len(units) > 1:
            raise self._wrong("has limits in different units; write all of them with s, or steps")
        object.__setattr__(self, "unit", units.pop())
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "tenant", tenant if slash else None)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "share", share)

    def _wrong(self, why: str) -> OptschedError:
        return OptschedError(f"the objective {shown(self.text)} {why}")

    def _limit(self, condition: str) -> tuple[str, float, str | None]:
        metric, sign, value = condition.partition("<=")
        found = _LIMIT.fullmatch(sign + value)
        limit = math.inf if found is None else float(found[1])
        if found is None or limit == math.inf:
            raise self._wrong(f"has {condition!r} where a limit belongs; {_FORMS}")
        if metric not in METRICS:
            raise self._wrong(f"limits {metric!r}: {nearest(metric, METRICS)}")
        if found[2] == "ms":
            return metric, limit / 1000, "s"
        return metric, limit, "steps" if found[2] == "step" else found[2] or None

    def _share(self, statistic: str) -> Fraction | None:
        if statistic in ("mean", "max"):
            return None if statistic == "mean" else Fraction(1)
        if not statistic.startswith("p"):
            raise self._wrong(f"has the statistic {statistic!r}; write mean, max or p99")
        return self._percent(statistic[1:])

    def _percent(self, text: str) -> Fraction:
        percent = Fraction(text) if _PERCENT.fullmatch(text) else Fraction(0)
        if not 0 < percent <= 100:
            raise self._wrong(
                f"has the share {shown(text)}, but it must be above 0 and at most 100"
            )
        return percent / 100

    def __str__(self) -> str:
        return self.text

    def counted_in(self, unit: str) -> Slo:
        """Return it with its unit, which a bare number lacks, or refuse another unit."""
        if self.unit == unit:
            return self
        if self.unit is not None:
            raise self._wrong(
                "is in steps, but times on this clock are in seconds; write s or ms"
                if unit == "s"
                else "is in seconds, but times here are in steps; write steps, or pass a clock "
                "that counts seconds"
            )
        if unit != "s":
            in_steps = _LIMIT.sub(r"<=\1steps", self.text)
            raise self._wrong(
                "has a limit without a unit, which means seconds on a clock only; write "
                f"{in_steps}, or pass a clock that counts seconds"
            )
        return Slo(_LIMIT.sub(r"<=\1s", self.text))

    def raised(self, factor: float) -> Slo:
        """Return it with the limits that `reached` means by a factor, rounded up."""

        def limit(found: re.Match[str]) -> str:
            old = float(found[1]) / (1000 if found[2] == "ms" else 1)
            value = proven(factor * (old if len(self.limits) > 1 else 1.0), up=True)
            return f"<={value.replace(',', '')}{self.unit or ''}"

        return Slo(_LIMIT.sub(limit, self.text))

    def misses(self, requests: int) -> int:
        """Return how many of so many requests may miss the limits."""
        assert self.share is not None
        return requests - math.ceil(self.share * requests)

    def asked(self, instance: Instance) -> BoolArray:
        """Return which requests it is about, shape (n,)."""
        asked = np.ones(len(instance), dtype=np.bool_)
        if list(self.limits) == ["tpot"] and not self.text.rpartition("/")[2].startswith("within"):
            asked &= instance.outputs > 1
        if self.tenant is not None:
            begin = f"{self.tenant}/"
            labels = instance.labels or ()
            if not any(label.startswith(begin) for label in labels):
                raise self._wrong(
                    f"is about the tenant {self.tenant!r}, but no label begins with {begin!r}; "
                    "add a column label such as acme/17, or leave the tenant out"
                )
            asked &= np.array([label.startswith(begin) for label in labels])
        return asked

    def within(self, times: Times) -> BoolArray:
        """Return which requests meet all its limits, shape (n,)."""
        met = ~np.isnan(times.latency)
        for metric, limit in self.limits.items():
            value = getattr(times, metric)
            met &= np.isnan(value) | (value <= limit)
        return met

    def reached(self, times: Times, asked: BoolArray) -> float:
        """Return the least limit that is met, of several what all are multiplied by."""
        count = int(asked.sum())
        if not count:
            return 0.0
        worst = np.where(np.isnan(times.latency), np.inf, 0.0)
        for metric, limit in self.limits.items():
            scale = max(limit, np.finfo(float).tiny) if len(self.limits) > 1 else 1.0
            worst = np.fmax(worst, getattr(times, metric) / scale)
        if self.share is None:
            return math.fsum(worst[asked]) / count
        place = count - self.misses(count) - 1
        return float(np.partition(worst[asked], place)[place])

    def attained(self, times: Times, asked: BoolArray) -> tuple[bool, float]:
        """Return whether it is met, and how far: a share of requests, or the limit over a mean."""
        count = int(asked.sum())
        if not count:
            return True, 1.0
        if self.share is not None:
            within = int(self.within(times)[asked].sum())
            return count - within <= self.misses(count), within / count
        ((metric, limit),) = self.limits.items()
        if np.isnan(times.latency[asked]).any():
            return False, 0.0
        mean = math.fsum(getattr(times, metric)[asked]) / count
        met = mean <= limit
        return met, 1.0 if met else limit / mean


def as_slos(slo: str | Slo | Iterable[str | Slo], unit: str) -> tuple[Slo, ...]:
    """Return objectives in a unit, at least one."""
    given = [slo] if isinstance(slo, str | Slo) else list(slo)
    if not given:
        raise OptschedError(f"there is no objective; {_FORMS}")
    each = (one if isinstance(one, Slo) else Slo(one) for one in given)
    return tuple(one.counted_in(unit) for one in each)
