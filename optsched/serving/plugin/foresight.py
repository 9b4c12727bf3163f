"""What is expected of requests: their outputs, and their keys; knows no vLLM."""

from __future__ import annotations

from math import ceil, inf, isclose
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched.clock import get_clock
from optsched.problem.forecasts import Beliefs
from optsched.problem.instance import Instance
from optsched.serving.learning import Aging, OutputLearner, Seen, TokenCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.serving.learning import Expected
    from optsched.serving.plugin.settings import Settings

_LONGEST = 16_384  # tokens: what beliefs say of longer outputs is said of these
POINT = -1  # row of a request of which a number is known, no belief


class Outlook(NamedTuple):
    """What is expected of a request; tokens of its output count those made."""

    output: int
    planned: int  # on which a plan counts
    row: int = POINT  # of the beliefs
    learned: bool = False  # from what others made


class Foresight:
    """What is expected of requests, and by what they are ordered."""

    def __init__(self, settings: Settings, usable: int, sizes: Sequence[int], longest: int) -> None:
        self.usable = usable
        self.sizes = sizes
        self.room = usable * settings.room
        self.deviations = settings.deviations
        self._settings = settings
        self._policy = settings.policy()
        self._aging = Aging(settings.scale)
        self.clock = get_clock("unit" if settings.clock is None else settings.clock)
        self._memory = usable * min(sizes, default=1)
        self.fair = settings.fair
        self._learner, self._counters = OutputLearner(), TokenCounters()
        tables: list[FloatArray] = []
        self._rows: list[IntArray | None] = []  # of beliefs, by forecast from 1 on and by prompt
        for belief in _beliefs(settings, min(longest, _LONGEST)):
            self._rows.append(None if belief is None else belief.rows + sum(map(len, tables)))
            tables += [] if belief is None else [belief.chances]
        # Of each row: the chance of an output above 0, 1, ... tokens, and the sum from there on.
        above = [np.cumsum(table[:, ::-1], axis=1)[:, ::-1] for table in tables]
        self._above = np.concatenate(above) if above else np.zeros((0, 1))
        self._sums = np.cumsum(self._above[:, ::-1], axis=1)[:, ::-1]
        #: Batches ahead at which a plan by beliefs looks; None where there are none.
        self.ahead = _ahead(self._above.shape[1]) if tables else None
        self._formula = None if self._policy is None else _formula(settings, self._alone)

    def expect(self, request: Any, limit: int, priority: Any = 0) -> Expected:
        """Return what others' outputs show of a request that arrives."""
        client, turn = _extra(request, "client"), _extra(request, "turn")
        client = client if isinstance(client, str | int) else None
        turn = turn if isinstance(turn, int) and turn > 0 else 0
        prompt, claim = request.num_prompt_tokens, _forecast_of(request)
        return self._learner.expect(Seen(prompt, limit, client, priority, turn, claim))

    def outlook(self, request: Any, made: int, learned: Expected) -> Outlook:
        """Return what is expected of a request that has made so many tokens."""
        limit, forecast, factor = learned.seen.limit, learned.seen.claim, self._settings.factor
        row = self._row(request, forecast)
        if row != POINT:
            at = min(made, self._above.shape[1] - 1)
            left = ceil(self._sums[row, at] / max(self._above[row, at], 1e-300) - 1e-9)
            output = max(min(made + max(left, 1), limit), 1)
            return Outlook(output, output, row)
        if forecast is not None and self._settings.trusted:
            return Outlook(ceil(min(forecast, limit)), ceil(min(factor * forecast, limit)))
        planned = ceil(min(factor * learned.median, limit))
        return Outlook(learned.mean, planned, learned=True)

    def arrives(self, request: Any, learned: Expected, look: Outlook) -> float:
        """Return the turn of a request that arrives, or by how much later than others it comes."""
        if self.fair:
            return self._counters.tag(learned.seen, look.output)
        if self._settings.scale is None:
            return 0.0
        name, came, prompt = request.request_id, request.arrival_time, request.num_prompt_tokens
        return self._aging.arrives(name, came, self.key(prompt, look.output), prompt, look.planned)

    def admitted(self, request: Any, tag: float) -> None:
        """Take note that a request is admitted."""
        self._aging.leaves(request.request_id)
        if self.fair:
            self._counters.serve(tag)

    def ended(self, request: Any, learned: Expected, expected: int, *, complete: bool) -> None:
        """Take note of what a request has made that has ended, by itself or not."""
        made = request.num_output_tokens
        self._aging.leaves(request.request_id)
        if complete:
            self._learner.learn(made, learned)
        if self.fair:
            self._counters.settle(learned.seen, expected, made)

    def key(self, prompt: int, left: int) -> float:
        """Return the key of a request in the order, without age."""
        return self._alone(prompt, left) if self._formula is None else self._formula(prompt, left)

    def aged(self, key: float, later: float) -> float:
        """Return the key of a request that comes by so much later than others."""
        return self._aging.key(key, later)

    def _alone(self, prompt: int, left: int) -> float:
        """Return the key of a request in an instance of its own."""
        assert self._policy is not None
        alone = Instance([prompt], [left], max(self._memory, prompt + left))
        return float(self._policy.keys(alone, self.clock)[0])

    def _row(self, request: Any, forecast: float | None) -> int:
        """Return the row of the belief about a request."""
        at = request.num_prompt_tokens if forecast is None else ceil(forecast) - 1
        rows = self._rows[forecast is None]
        return POINT if rows is None else int(rows[min(at, len(rows) - 1)])

    def chances(
        self, made: IntArray, limits: IntArray, row: IntArray, ahead: IntArray
    ) -> FloatArray:
        """Return the chance that each request still runs in each batch ahead."""
        last = self._above.shape[1] - 1
        now = np.minimum(made, last)[:, None]
        then = np.minimum(now + np.maximum(ahead - 1, 0), last)
        rows = np.maximum(row, 0)[:, None]
        chances = self._above[rows, then] / np.maximum(self._above[rows, now], 1e-300)
        return np.asarray(np.where(made[:, None] + ahead > limits[:, None], 0.0, chances))


def _formula(
    settings: Settings, key: Callable[[int, int], float]
) -> Callable[[int, int], float] | None:
    """Return keys of an order of ours, all of them quadratic, without an instance for each."""
    if not settings.is_ours:
        return None
    far = 1024  # a power of two: differences of whole numbers are exact
    base, by_prompt, by_output = key(1, 1), key(1 + far, 1), key(1, 1 + far)
    squares = (key(1 + 2 * far, 1) - 2 * by_prompt + base) / (2 * far**2)
    outputs = (key(1, 1 + 2 * far) - 2 * by_output + base) / (2 * far**2)
    both = (key(1 + far, 1 + far) - by_prompt - by_output + base) / far**2
    prompt_slope = (by_prompt - base) / far - squares * far
    output_slope = (by_output - base) / far - outputs * far

    def formula(prompt: int, left: int) -> float:
        p, o = prompt - 1, left - 1
        rising = p * (prompt_slope + squares * p + both * o)
        return base + rising + o * (output_slope + outputs * o)

    tried = ((7, 3), (1000, 300), (5000, 20))
    return formula if all(isclose(formula(*at), key(*at)) for at in tried) else None


def _beliefs(settings: Settings, longest: int) -> tuple[Beliefs | None, Beliefs | None]:
    """Return the belief about each forecast, from 1 on, and that about each prompt, from 0 on."""
    near = past = None
    if settings.log_error is not None:
        near = Beliefs.around(np.arange(1, longest + 1), settings.log_error, longest)
    if settings.history is not None:
        history = settings.history
        if not isinstance(history, Instance):
            from optsched.workloads import read_trace

            history = read_trace(history)
        past = Beliefs.of_history(history, np.arange(longest + 1), longest)
    return near, past


def _ahead(most: int) -> IntArray:
    """Return the batches ahead at which memory is looked at, each from 8 on a quarter further."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + max(1, found[-1] // 4))
    return np.array(found)


def _extra(request: Any, name: str) -> Any:
    """Return what a client said of a request: `extra_args`, which is `vllm_xargs` over HTTP."""
    parameters = request.sampling_params
    return ((parameters and parameters.extra_args) or {}).get(name)


def _forecast_of(request: Any) -> float | None:
    """Return the output that a client expects; all but numbers of at least 1 are ignored."""
    try:
        value = float(_extra(request, "expected_output"))
    except (TypeError, ValueError):
        return None
    return value if 1 <= value < inf else None
