"""The best policy of a game with unknown outputs, and what it costs whatever they are."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched.errors import OptschedError, SolverError
from optsched.execution import Execution
from optsched.forecasts import Forecast
from optsched.instance import Instance
from optsched.models.game import GameValue
from optsched.solution import Solution, Stopped
from optsched.solvers.exact import game_kernels as kernels
from optsched.solvers.exact.game_kernels import AGAIN, END, RUN, WAIT, Room, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.game import Outcomes

_MAX_STATES = 3_000_000
_SOLVER = "dynamic program over what is known"


@dataclass(frozen=True, eq=False, repr=False)
class Strategy:
    """The best policy for a game, with what it costs for each outcome.

    Attributes
    ----------
    game
        The game.
    value
        What the criterion is of this policy, evaluated by running it on all outcomes; exact for
        ratio and regret.
    outcomes
        All outputs that the requests may have, and their chances.
    total_latencies
        Of this policy, one per outcome.
    optima
        Total latencies in hindsight; None if the game is about the mean.
    """

    game: GameValue
    value: Fraction | float
    outcomes: Outcomes
    total_latencies: IntArray
    optima: IntArray | None
    _solved: _Solved

    def __str__(self) -> str:
        shown = f"{float(self.value):.9g}"
        return f"best {self.game.criterion} {shown} over {len(self.total_latencies):,} outcomes"

    __repr__ = __str__

    def run(self, outputs: npt.ArrayLike) -> Execution:
        """Return what the policy does where the outputs are these.

        Parameters
        ----------
        outputs
            One per request, shape (n,); each must be possible.

        Returns
        -------
        Execution
            All attempts.

        Raises
        ------
        OptschedError
            If the outputs are none of the outcomes.
        """
        chosen = np.flatnonzero((self.outcomes.outputs == np.asarray(outputs)).all(axis=1))
        if not len(chosen):
            raise OptschedError(
                f"the outputs {np.asarray(outputs).tolist()} are none of the outcomes of the game"
            )
        return self._solved.execution(self.outcomes.outputs[chosen[0]])


class _Solved:
    """A game with the values of all its states."""

    def __init__(self, game: GameValue, late: Callable[[], bool]) -> None:
        self.game, self.late = game, late
        self.table, self.room = _written(game), _room(len(game))
        self.states = int(_sizes(self.table).prod())
        self.values = np.empty((game.steps + 1, self.states))

    def fill(self, terminal: IntArray | None = None, scale: int = 1) -> bool:
        """Set all values, less given ones at the end; return False if the time is over."""
        table = self.table = self.table._replace(cost=float(scale))
        room, values, last = self.room, self.values, self.game.steps
        sizes, counts = _sizes(table), table.layer_counts
        complete = table.layers[np.arange(len(counts)), counts - 1]
        places = np.zeros(1, dtype=np.int64)
        for first, size, stride in zip(complete, sizes, table.stride, strict=True):
            places = (places[:, None] + stride * np.arange(first, size)).ravel()
        values[:] = np.inf
        values[last, places] = 0.0 if terminal is None else -terminal
        layers = int(counts.prod())
        part = int(counts[:-1].prod()) or 1
        fill_layers = interruptible_kernel(kernels.fill_layers, self.states)
        for first in range(layers - part, -1, -part):
            if self.late():
                return False
            fill_layers(table, values[last], room, first, first + part)
        for clock in range(last - 1, -1, -1):
            if self.late():
                return False
            there = int(sizes[table.arrivals <= clock].prod())
            kernels.fill_step(table, values[clock], values[clock + 1], room, clock, there)
        return True

    def total_latencies(self, outputs: IntArray) -> IntArray:
        """Return the total latency of the best policy for each row of outputs."""
        run = interruptible_kernel(kernels.latencies, self.states)
        return run(self.table, self.values, self.room, self._layers_of(outputs))

    def execution(self, outputs: IntArray) -> Execution:
        """Return what the best policy does where these are the outputs."""
        table, room, known = self.table, self.room, self.game.forecast
        chosen = self._layers_of(outputs[None])[0]
        room.state[:] = 0
        first, clock, left = int(known.arrivals.min()), 0, len(outputs)
        start = np.full(left, -1)
        attempts: list[tuple[int, int, int]] = []
        while left:
            kernels.decide(table, self.values, room, clock)
            before = start.copy()
            for request, action in enumerate(room.best.tolist()):
                if action != RUN and start[request] >= 0:
                    attempts.append((request, start[request], clock - start[request]))
                    start[request] = -1
                if action == AGAIN or (action == RUN and before[request] < 0):
                    start[request] = clock
            left -= kernels.move(table, room, chosen)
            clock += 1
            ended = (start >= 0) & (clock - start == outputs)
            for request in np.flatnonzero(ended).tolist():
                attempts.append((request, start[request], clock - start[request]))
                start[request] = -1
        rows = np.array(attempts, dtype=np.int64).T
        instance = Instance(
            known.prompts, outputs, known.memory, known.arrivals, labels=known.labels
        )
        name = f"best {self.game.criterion}"
        return Execution(instance, name, rows[0], rows[1] + first, rows[2])

    def _layers_of(self, outputs: IntArray) -> IntArray:
        """Return which of its possible outputs each request has."""
        columns = zip(self.game.supports, outputs.T, strict=True)
        return np.stack([np.searchsorted(each, column) for (each, _), column in columns], axis=1)


def solve_game(game: GameValue, time_limit: float | None) -> Solution:
    """Find the best policy of a game, and run it on all outcomes.

    Raises
    ------
    SolverError
        If the game has too many states.
    """
    if game.states > _MAX_STATES:
        raise SolverError(
            f"the game has {game.size}, but its table may have at most "
            f"{_MAX_STATES:,}; take fewer requests, or fewer or smaller possible outputs"
        )
    began = time.perf_counter()
    end = began + (math.inf if time_limit is None else time_limit)
    solved = _Solved(game, lambda: time.perf_counter() > end)
    outcomes = game.outcomes()
    found = (
        _best_mean(solved, outcomes) if game.criterion == "mean" else _at_worst(solved, outcomes)
    )
    seconds = time.perf_counter() - began
    if found is None:
        return Solution(Stopped.TIME_LIMIT, _SOLVER, seconds, model="game")
    strategy, bound = found
    return Solution(
        Stopped.OPTIMAL,
        _SOLVER,
        seconds,
        objective=float(strategy.value),
        bound=bound,
        model="game",
        answer=strategy,
    )


def _best_mean(solved: _Solved, outcomes: Outcomes) -> tuple[Strategy, float] | None:
    """Return the best policy in the mean, and a proven lower bound."""
    if not solved.fill():
        return None
    game = solved.game
    totals = solved.total_latencies(outcomes.outputs)
    mean = float(outcomes.chances @ totals)
    # No path through the states is longer than their number; each step of it rounds a sum of
    # products of chances, of which none is negative, so that the relative errors add up.
    terms = 2 ** len(game) + 2 * len(game) * (int(solved.table.layer_counts.max()) + 2)
    rounded = terms * game.states * 2.0**-53
    bound = float(solved.values[0, 0]) * (1.0 - rounded)
    return Strategy(game, mean, outcomes, totals, None, solved), np.nextafter(bound, 0.0)


def _at_worst(solved: _Solved, outcomes: Outcomes) -> tuple[Strategy, float] | None:
    """Return the best policy at worst, exactly.

    The ratio is found as Dinkelbach does. Some policy has a ratio below p / q if the least worst
    case of q TEL - p OPT is negative, and then that policy is better; all numbers are whole.
    """
    game = solved.game
    optima = _optima(solved, outcomes.outputs)
    if optima is None:
        return None
    factor = Fraction(1)
    while solved.fill(factor.numerator * optima, factor.denominator):
        totals = solved.total_latencies(outcomes.outputs)
        if game.criterion == "regret":
            value = Fraction(int((totals - optima).max()))
        else:
            value = max(map(Fraction, totals.tolist(), optima.tolist()))
            if solved.values[0, 0] != 0:
                factor = value
                continue
        bound = float(value)
        if Fraction(bound) > value:
            bound = math.nextafter(bound, 0.0)
        return Strategy(game, value, outcomes, totals, optima, solved), bound
    return None


def _optima(solved: _Solved, outputs: IntArray) -> IntArray | None:
    """Return the least total latency in hindsight for each row of outputs."""
    known, optima = solved.game.forecast, []
    seen: dict[tuple[tuple[int, ...], ...], float] = {}
    alike = list(zip(known.prompts.tolist(), known.arrivals.tolist(), strict=True))
    for row in outputs:
        facts = tuple(sorted((*each, out) for each, out in zip(alike, row.tolist(), strict=True)))
        if facts not in seen:
            certain = Forecast(known.prompts, known.arrivals, row, row, known.memory)
            # Who knows the outputs gains nothing by a preemption.
            hindsight = _Solved(GameValue(certain, "regret", preemption=False), solved.late)
            if not hindsight.fill():
                return None
            seen[facts] = hindsight.values[0, 0]
        optima.append(seen[facts])
    return np.array(optima, dtype=np.int64)


def _written(game: GameValue) -> Table:
    """Write a game as a table."""
    known, apart = game.forecast, game.criterion != "mean"
    shape = (
        len(game),
        max(int(out.sum()) + (len(out) if apart else 1) for out, _ in game.supports),
    )
    counts = np.array([len(out) + 1 for out, _ in game.supports])
    layers = np.zeros((len(game), counts.max() + 1), dtype=np.int64)
    moves = np.full((4, *shape), -1, dtype=np.int64)
    held, chance = np.zeros_like(moves), np.zeros((2, *shape))
    for request in range(len(game)):
        _write_request(game, request, layers[request], moves[:, request], chance[:, request])
        prompt, outputs = known.prompts[request], game.supports[request][0]
        made = np.concatenate([np.arange(output) for output in outputs])
        held[RUN, request, : len(made)] = prompt + made + 1
        held[AGAIN, request, : len(made)] = prompt + 1
        held[END, request, : len(made)] = np.where(made > 0, prompt + made, 0)
    sizes = layers[np.arange(len(game)), counts]
    stride = np.cumprod([1, *sizes[:-1].tolist()])
    facts = [
        (prompt, arrival, outputs.tolist(), chances.tolist())
        for prompt, arrival, (outputs, chances) in zip(
            known.prompts.tolist(), known.arrivals.tolist(), game.supports, strict=True
        )
    ]
    alike = np.array([0, *(one == other for one, other in pairwise(facts))], dtype=np.int64)
    arrivals = np.asarray(known.arrivals - known.arrivals.min())
    return Table(
        moves, held, chance, layers, counts, stride, alike, arrivals, known.memory, int(apart), 1.0
    )


def _write_request(
    game: GameValue, request: int, layers: IntArray, moves: IntArray, chance: FloatArray
) -> None:
    """Write the states of a request: for each output that it has at least, the tokens made."""
    outputs, chances = game.supports[request]
    apart = game.criterion != "mean"
    complete = int(outputs.sum())
    size = complete + (len(outputs) if apart else 1)
    layers[: len(outputs) + 2] = [0, *np.cumsum(outputs).tolist(), size]
    for place, output in enumerate(outputs.tolist()):
        first, last = layers[place], layers[place + 1] - 1
        moves[RUN, first:last] = np.arange(first, last) + 1
        moves[WAIT, first] = first
        if game.preemption:
            moves[WAIT, first + 1 : last + 1] = first
            moves[AGAIN, first + 1 : last + 1] = first + 1
        moves[END, last] = complete + (place if apart else 0)
        if place + 1 < len(outputs):
            moves[RUN, last] = layers[place + 1] + output
        rest = chances[place:].sum()
        chance[:, last] = chances[place] / rest, chances[place + 1 :].sum() / rest
    moves[WAIT, complete:size] = np.arange(complete, size)


def _sizes(table: Table) -> IntArray:
    """Return how many states each request has."""
    return table.layers[np.arange(len(table.layers)), table.layer_counts]


def _room(count: int) -> Room:
    numbers = [np.zeros(count, dtype=np.int64) for _ in range(7)]
    return Room._make([*numbers, np.zeros(2**count, dtype=np.int64), np.zeros(2**count)])
