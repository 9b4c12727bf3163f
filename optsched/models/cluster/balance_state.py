"""One step of a cluster: what runs, what is free and what waits, as a router may know it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import prefix_sums
from optsched.errors import InstanceError
from optsched.models.linear.families import read_only

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, IntArray

WAITING = -1  # in place of a worker
_LARGEST = 2**40  # tokens of a worker times its slowness
_SUM = 2**53  # beyond it an imbalance is no exact floating-point number


@dataclass(frozen=True, eq=False, repr=False)
class BalanceState:
    r"""Workers and waiting requests at a step :math:`k`, with what is predicted of the next steps.

    Worker :math:`g` holds :math:`P_g(h)` tokens of requests admitted before that are still alive at
    step :math:`k + h`, and has free slots. A waiting request that is admitted now holds
    :math:`w_i(h) = s_i + \sum_{j=1}^{h} \delta_{ij}` tokens at step :math:`k + h`; one that is
    known to end inside the window falls to 0 by a negative drift.

    Parameters
    ----------
    alive
        Tokens :math:`P_g(h)`, shape (G, H + 1) for a prediction over H further steps.
    free
        Free slots of each worker, shape (G,).
    waiting
        Tokens :math:`s_i` of the waiting requests, the oldest first, shape (R,).
    drift
        Tokens that a new request gains per step: a number, one per step, shape (H,), or one per
        request and step, shape (R, H).
    slowness
        Whole number that each worker takes per token, relative to the others, shape (G,); None
        means that all are equally fast.
    memory
        Tokens that each worker may hold at any step of the window, shape (G,); None for no limit.
    bonus
        Value of each request's admission in the objective, shape (R,); None: zero.

    Examples
    --------
    >>> from optsched.models import BalanceState
    >>> state = BalanceState(alive=[[9, 10], [4, 0]], free=[0, 1], waiting=[3, 7])
    >>> state
    <BalanceState: 2 workers, 1 free slot, 2 waiting, lookahead 1>
    >>> state.tokens
    array([[3, 4],
           [7, 8]])
    """

    alive: IntArray
    free: IntArray
    waiting: IntArray
    drift: IntArray
    slowness: IntArray
    memory: IntArray | None
    bonus: IntArray

    def __init__(
        self,
        alive: npt.ArrayLike,
        free: npt.ArrayLike,
        waiting: npt.ArrayLike,
        drift: npt.ArrayLike = 1,
        slowness: npt.ArrayLike | None = None,
        memory: npt.ArrayLike | None = None,
        bonus: npt.ArrayLike | None = None,
    ) -> None:
        loads = _whole("alive", alive)
        if loads.ndim != 2 or loads.shape[1] == 0:
            raise InstanceError(
                f"alive has shape {loads.shape}, but needs one row per worker and one column per "
                "step from now on"
            )
        workers, steps = loads.shape
        if workers == 0:
            raise InstanceError("there are no workers; pass at least one row of loads")
        sizes = whole_row("waiting", waiting, None)
        count = len(sizes)
        fields = {
            "alive": loads,
            "free": whole_row("free", free, workers),
            "waiting": sizes,
            "drift": _drifts(drift, count, steps - 1),
            "slowness": whole_row("slowness", 1 if slowness is None else slowness, workers),
            "memory": None if memory is None else whole_row("memory", memory, workers),
            "bonus": whole_row("bonus", 0 if bonus is None else bonus, count),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, None if value is None else read_only(value))
        self._check()

    def _check(self) -> None:
        for owner, name, least in (
            ("worker", "alive", 0),
            ("worker", "free", 0),
            ("worker", "slowness", 1),
            ("request", "waiting", 0),
            ("request", "bonus", 0),
        ):
            values = getattr(self, name)
            if (values < least).any():
                at = _first(values < least)[0]
                raise InstanceError(
                    f"{owner} {at}: {name} is {values[at].min()}, but must be at least {least}"
                )
        tokens = self.tokens
        if (tokens < 0).any():
            request, step = _first(tokens < 0)
            raise InstanceError(
                f"request {request}: its drift leaves {tokens[request, step]} tokens {step} "
                f"step{'s' * (step > 1)} ahead, but no load can be below 0; let it drift by less"
            )
        self._check_memory(tokens)
        most = self.alive.max(axis=1) + self.free * int(tokens.max(initial=0))
        heaviest = int((most * self.slowness).max())
        total = len(self.free) * self.alive.shape[1] * heaviest + int(self.bonus.sum())
        if heaviest >= _LARGEST or total >= _SUM:
            raise InstanceError(
                f"a worker's load may reach {heaviest:,} tokens times slowness, which is too much "
                "for exact arithmetic over the window; use a larger unit of tokens or slowness"
            )

    def _check_memory(self, tokens: IntArray) -> None:
        if self.memory is None:
            return
        over = self.alive > self.memory[:, None]
        if over.any():
            worker, step = _first(over)
            raise InstanceError(
                f"worker {worker}: its requests hold {self.alive[worker, step]} tokens at step "
                f"k + {step}, but its memory holds {self.memory[worker]}; raise the memory"
            )
        peaks, largest = tokens.max(axis=1), self.memory.max()
        if (peaks > largest).any():
            request = int(np.argmax(peaks > largest))
            raise InstanceError(
                f"request {request}: it reaches {peaks[request]} tokens inside the window, but no "
                f"worker's memory holds more than {largest}; leave it out or raise the memory"
            )

    @classmethod
    def from_requests(
        cls,
        slots: npt.ArrayLike,
        worker: npt.ArrayLike,
        tokens: npt.ArrayLike,
        remaining: npt.ArrayLike,
        waiting: npt.ArrayLike,
        lookahead: int = 0,
        drift: npt.ArrayLike = 1,
        slowness: npt.ArrayLike | None = None,
        memory: npt.ArrayLike | None = None,
        bonus: npt.ArrayLike | None = None,
    ) -> BalanceState:
        """Make a state from a list of the active requests."""
        limits, at = whole_row("slots", slots, None), whole_row("worker", worker, None)
        held = whole_row("tokens", tokens, len(at))
        left = whole_row("remaining", remaining, len(at))
        if len(limits) == 0:
            raise InstanceError("there are no workers; pass the slots of at least one")
        if lookahead < 0:
            raise InstanceError(f"lookahead is {lookahead}, but must be at least 0 steps")
        outside = (at < 0) | (at >= len(limits))
        for what, name, values, bad, wish in (
            ("worker", "slots", limits, limits < 1, "at least 1"),
            ("active request", "worker", at, outside, f"from 0 to {len(limits) - 1}"),
            ("active request", "remaining", left, left < 1, "at least 1"),
        ):
            if bad.any():
                first = int(np.argmax(bad))
                raise InstanceError(
                    f"{what} {first}: {name} is {values[first]}, but must be {wish}"
                )
        free = limits - np.bincount(at, minlength=len(limits))
        if free.min() < 0:
            number = int(np.argmin(free))
            raise InstanceError(
                f"worker {number} runs {limits[number] - free[number]} requests, but has "
                f"{limits[number]} slots"
            )
        growth = prefix_sums(_drifts(drift, -1, lookahead))
        profile = (held[:, None] + growth) * (left[:, None] > np.arange(lookahead + 1))
        if (profile < 0).any():
            request, step = _first(profile < 0)
            raise InstanceError(
                f"active request {request}: the drift leaves {profile[request, step]} tokens "
                f"{step} steps ahead, but no load can be below 0; let it drift by less"
            )
        alive = np.zeros((len(limits), lookahead + 1), dtype=np.int64)
        np.add.at(alive, at, profile)
        return cls(alive, free, waiting, drift, slowness, memory, bonus)

    def __repr__(self) -> str:
        slots = int(self.free.sum())
        return (
            f"<BalanceState: {len(self.free)} worker{'s' * (len(self.free) != 1)}, {slots} free "
            f"slot{'s' * (slots != 1)}, {len(self.waiting)} waiting, lookahead {self.lookahead}>"
        )

    @property
    def lookahead(self) -> int:
        """Steps that the prediction reaches."""
        return int(self.alive.shape[1]) - 1

    @property
    def growth(self) -> IntArray:
        """Tokens gained by step k + h, shape (H + 1,), or (R, H + 1) where requests differ."""
        return prefix_sums(self.drift)

    @property
    def tokens(self) -> IntArray:
        """Tokens of each waiting request at step k + h if it is admitted now, shape (R, H + 1)."""
        return self.waiting[:, None] + self.growth

    def window(self, lookahead: int) -> BalanceState:
        """Return the state with a shorter prediction."""
        if not 0 <= lookahead <= self.lookahead:
            raise InstanceError(
                f"lookahead is {lookahead} steps, but the prediction reaches {self.lookahead}; "
                "predict further or look less far ahead"
            )
        if lookahead == self.lookahead:
            return self
        alive, drift = self.alive[:, : lookahead + 1], self.drift[..., :lookahead]
        return dataclasses.replace(self, alive=alive, drift=drift)


def _whole(name: str, values: Any) -> IntArray:
    """Copy whole numbers of any shape, refusing everything else."""
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iuf":
        raise InstanceError(f"{name} must hold whole numbers only")
    with np.errstate(invalid="ignore"):
        good = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < _SUM)
    if not good.all():
        place = _first(~good)
        raise InstanceError(f"{name}{place} is {array[tuple(place)]}, but must be a whole number")
    return array.astype(np.int64)


def whole_row(name: str, values: Any, length: int | None) -> IntArray:
    """Copy a row of whole numbers, one for all where a number is given and the length is known."""
    array = _whole(name, values)
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1 or (length is not None and len(array) != length):
        wish = "a list of numbers" if length is None else f"{length} numbers"
        raise InstanceError(f"{name} has shape {array.shape}, but must be {wish}")
    return array


def _drifts(drift: Any, requests: int, steps: int) -> IntArray:
    """Return one drift per step, or per request and step."""
    array = _whole("drift", drift)
    if array.ndim == 0:
        return np.full(steps, array)
    shapes = [(steps,), (requests, steps)] if requests >= 0 else [(steps,)]
    if array.shape not in shapes:
        raise InstanceError(
            f"drift has shape {array.shape}, but must be a number or have shape "
            f"{' or '.join(map(str, shapes))}: one per step of the prediction"
        )
    return array


def _first(bad: BoolArray) -> list[int]:
    """Return the position of the first bad entry."""
    return list(np.argwhere(bad)[0].tolist())
