"""What a scheduler inside vLLM goes by."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf, nan
from typing import TYPE_CHECKING, Any

from optsched.errors import OptschedError, nearest
from optsched.policies import PriorityPolicy, get_policy, is_shipped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.serving.learning import Scale


def _number(value: Any) -> float:
    """Return what is a number, and what is none as one that no comparison holds for."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else nan


def _positive(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return 0 < _number(value) < inf


def _shares(value: Any) -> bool:
    """Whether a value is a switch, or weights of clients."""
    weighted = isinstance(value, dict) and value and all(map(_positive, value.values()))
    return isinstance(value, bool) or bool(weighted)


_FINITE = "a finite number above 0"
_SWITCH = (lambda value: isinstance(value, bool), "true or false")
#: What values but the default must be, and in words.
_MUST_BE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "factor": (_positive, _FINITE),
    "patience": (lambda value: _number(value) > 0, "a number above 0"),
    "log_error": (_positive, _FINITE),
    "deviations": (lambda value: 0 <= _number(value) < inf, "a finite number of at least 0"),
    "aging": (lambda value: value in (None, "load") or _positive(value), f"{_FINITE} or 'load'"),
    **dict.fromkeys(("trusted", "dry_run"), _SWITCH),
    "fair": (_shares, 'true, false or weights of clients above 0, such as {"a": 2}'),
    "room": (lambda value: 0 < _number(value) <= 1, "a share above 0 and at most 1"),
    "metrics_port": (lambda value: 0 < _number(value) < 65_536, "a port from 1 to 65535"),
}


@dataclass(frozen=True)
class Settings:
    """What a scheduler inside vLLM goes by; a server passes them as JSON.

    `--additional-config '{"optsched": {"order": "work", "clock": "mine.json"}}'`

    Parameters
    ----------
    order
        By what priorities are set, smallest first: the name of an order, a `PriorityPolicy`, a
        function of an `Instance`, or "module:function". None: vLLM's own order.
    clock
        How long batches take, for orders that depend on it, such as "work": a name, a JSON file or
        a clock.
    factor
        A plan counts on the expected output times this factor.
    patience
        Requests that have waited this many seconds come first, in order of arrival.
    log_error
        Error of forecasts, as the standard deviation of their logarithm: a plan then admits what is
        likely to fit, in place of counting on the factor.
    history
        Completed requests, as a trace or an `Instance`, that show which outputs are likely where
        there is no forecast. None: a running mean.
    deviations
        Standard deviations of the memory that a plan leaves free where it goes by beliefs.
    aging
        Seconds by which a request must have come earlier to come before a key 2.7 times as small,
        in orders of optsched: they go by the logarithm of the key, plus the arrival over `aging`.
        "load": as many as the next request by arrival would have waited, had as much work been
        admitted by arrival, and only what is small comes earlier. None, or a patience: keys alone.
    trusted
        Believe what clients say of outputs. If not, what one says counts by how right it has been
        (`optsched.serving.learning`), and before that no less than the median of similar
        requests is.
    fair
        Serve clients in turn, by virtual counters of their tokens, in place of the order; with
        weights of some, a token of a client of weight 2 counts half.
    room
        Share of the blocks that a plan counts on. Below 1 it leaves blocks to what nobody uses now
        but may be found in the prefix cache again.
    dry_run
        Form vLLM's own batches, and count what would be done.
    record
        Folder into which requests, without texts, and times of batches are written.
    metrics_port
        Port of a page with the metrics, for Prometheus; that of the first engine, others follow.

    Examples
    --------
    >>> Settings(order="work", clock="llama-2-70b-2xa100").policy().name
    'work'
    >>> Settings(factor=0)
    Traceback (most recent call last):
        ...
    optsched.errors.OptschedError: optsched.vllm: factor is 0, but must be a finite number above 0
    """

    order: str | PriorityPolicy | Callable[[Any], Any] | None = "area"
    clock: str | Clock | None = None
    factor: float = 1.0
    patience: float = inf
    log_error: float | None = None
    history: str | Path | Instance | None = None
    deviations: float = 1.0
    aging: Scale = "load"
    trusted: bool = False
    fair: bool | dict[str, float] = False
    room: float = 1.0
    dry_run: bool = False
    record: str | Path | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name, (good, wish) in _MUST_BE.items():
            value = getattr(self, name)
            if value is not getattr(Settings, name) and not good(value):
                raise OptschedError(f"optsched.vllm: {name} is {value!r}, but must be {wish}")

    def updated(self, given: dict[str, Any]) -> Settings:
        """Return the settings with those that a server was started with."""
        known = [field.name for field in fields(self)]
        for name in given:
            if name not in known:
                raise OptschedError(
                    f"optsched.vllm has no setting {name!r}: {nearest(name, known)}"
                )
        return replace(self, **given)

    @property
    def orders(self) -> bool:
        """Whether priorities are set."""
        return bool(self.fair) or self.order is not None

    @property
    def is_ours(self) -> bool:
        """Whether the order is one of optsched, by name."""
        return isinstance(self.order, str) and is_shipped(self.order)

    @property
    def scale(self) -> Scale:
        """Over what keys age, if they do."""
        ages = self.is_ours and not self.fair and self.patience == inf
        return self.aging if ages else None

    def policy(self) -> PriorityPolicy | None:
        """Return the order."""
        if self.order is None or self.fair:
            return None
        policy = get_policy(self.order)
        if not isinstance(policy, PriorityPolicy) or policy.rule != "prefix":
            raise OptschedError(
                f"optsched.vllm: {policy.name!r} is no plain order; use one such as area, work or "
                "mc-sf, or a function of an Instance"
            )
        if self.clock is None and policy.name.partition(":")[0] == "work":
            raise OptschedError(
                f"optsched.vllm: the order {policy.name!r} depends on how long batches take; set "
                "clock to a name or a JSON file"
            )
        return policy
