"""Service level objectives: what they ask of requests, read from one line of text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.errors import OptschedError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.instance import Instance

METRICS = ("latency", "ttft", "tpot")
ROUNDING = 1e-9  # relative: times are sums of many batches, and a limit is met up to rounding
_FORMS = (
    "write METRIC:STATISTIC<=VALUE, such as ttft:p99<=2, tpot:mean<=0.05 or latency:max<=30, or "
    "within:ttft<=1&tpot<=0.08:99%"
)
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+"
_LIMIT = re.compile(rf"([^<]*)<=({_NUMBER})")


class Times(NamedTuple):
    """What requests waited, shape (n,): NaN where unfinished, and TPOT for single tokens, too."""

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
    ``ttft<=1``. With ``TENANT/`` before it an objective is about the requests whose labels begin
    with it. Values are in seconds on a clock, otherwise in steps.

    A request with a single token has no TPOT: ``tpot:...`` leaves it out, ``within`` counts the
    condition as met. A request that never completes meets nothing.

    Raises
    ------
    OptschedError
        If the text is none of these.

    Examples
    --------
    >>> from optsched import Slo
    >>> slo = Slo("within:ttft<=1&tpot<=0.08:99%")
    >>> slo.limits, slo.share, slo.misses(1000)
    ({'ttft': 1.0, 'tpot': 0.08}, Fraction(99, 100), 10)
    >>> Slo("acme/ttft:p99<=2").tenant
    'acme'
    """

    text: str
    tenant: str | None = field(init=False)
    limits: dict[str, float] = field(init=False, compare=False)
    share: Fraction | None = field(init=False)  # of the requests; None for a mean

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
        limits = dict(map(self._limit, conditions))
        if len(limits) < len(conditions):
            raise self._wrong("limits a metric twice; keep the smaller limit")
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "tenant", tenant if slash else None)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "share", share)

    def _wrong(self, why: str) -> OptschedError:
        return OptschedError(f"the objective {shown(self.text)} {why}")

    def _limit(self, condition: str) -> tuple[str, float]:
        found = _LIMIT.fullmatch(condition)
        if found is None:
            raise self._wrong(f"has {condition!r} where a limit belongs; {_FORMS}")
        if found[1] not in METRICS:
            raise self._wrong(f"limits {found[1]!r}: {nearest(found[1], METRICS)}")
        return found[1], float(found[2])

    def _share(self, statistic: str) -> Fraction | None:
        if statistic in ("mean", "max"):
            return None if statistic == "mean" else Fraction(1)
        if not statistic.startswith("p"):
            raise self._wrong(f"has the statistic {statistic!r}; write mean, max or p99")
        return self._percent(statistic[1:])

    def _percent(self, text: str) -> Fraction:
        percent = Fraction(text) if re.fullmatch(_NUMBER, text) else Fraction(0)
        if not 0 < percent <= 100:
            raise self._wrong(f"has the share {text!r}, but it must be above 0 and at most 100")
        return percent / 100

    def __str__(self) -> str:
        return self.text

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
            met &= np.isnan(value) | (value <= limit * (1 + ROUNDING))
        return met

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
        met = mean <= limit * (1 + ROUNDING)
        return met, 1.0 if met else limit / mean


def as_slos(slo: str | Slo | Iterable[str | Slo]) -> tuple[Slo, ...]:
    """Return objectives, of which there is at least one."""
    given = [slo] if isinstance(slo, str | Slo) else list(slo)
    if not given:
        raise OptschedError(f"there is no objective; {_FORMS}")
    return tuple(each if isinstance(each, Slo) else Slo(each) for each in given)
