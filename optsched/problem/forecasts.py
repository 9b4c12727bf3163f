"""What a policy may know of the outputs: an interval for each (Robust Section 2), and a belief.

Forecasts hold copies, with no way back to the true outputs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import MAX_TOKENS, as_count, as_number, checked
from optsched._internal.arrays import as_floats, as_integers, frozen, require_room
from optsched.errors import InstanceError, OptschedError, nearest, shown

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge


ROUGH = 0.5  # of rough forecasts the standard deviation of log(forecast / output)
_BANDWIDTH = 0.12  # of the kernel that smooths a history, on the scale of the logarithm
_UNIFORM_SHARE = 0.02  # of a belief from a history, so that nothing is held to be impossible
_GROUPS = 5  # of requests by their prompts, equally large
_CHANCE = 48  # bytes of the chance of an output, and of what is made of it
_ALL_UP_TO = 8  # steps ahead at which a plan by beliefs looks at the memory
_PRIOR = 2.0  # completed requests that the first belief is worth while it learns


@checked()
@dataclass(frozen=True, eq=False, init=False)
class Beliefs:
    """How likely each output is believed to be before a request runs.

    Requests that are alike share a row. Outputs outside a request's interval are cut off; the
    policy takes into account the tokens that a request has already made.

    Parameters
    ----------
    chances
        Chances of the outputs 1, 2, ... in each row, shape (rows, longest output); rows are scaled
        to a sum of one.
    rows
        Row of each request, shape (n,). None: as many rows as requests, in their order.
    prior
        Learn while requests complete; the chances given here then count as this many of them. 0:
        never learn.

    Examples
    --------
    Half of the requests answer with a token, the others with four:

    >>> beliefs = Beliefs([[0.5, 0, 0, 0.5]], rows=[0, 0, 0])
    >>> beliefs.mean()
    array([2.5, 2.5, 2.5])
    """

    chances: FloatArray
    rows: IntArray
    prior: float

    def __init__(
        self, chances: npt.ArrayLike, rows: npt.ArrayLike | None = None, prior: float = 0.0
    ) -> None:
        try:
            table = np.array(chances, dtype=np.float64)
        except (TypeError, ValueError):
            raise OptschedError(f"chances are {shown(chances)}, but must be numbers") from None
        if table.ndim != 2 or not table.size:
            raise OptschedError(
                f"chances have the shape {table.shape}, but need a row for requests that are alike "
                "and a column for each output, 1 and up"
            )
        given = as_integers("rows", np.arange(len(table)) if rows is None else rows)
        wrong = ~np.isfinite(table) | (table < 0)
        if wrong.any():
            row, output = np.argwhere(wrong)[0].tolist()
            raise OptschedError(
                f"the chance of the output {output + 1} in row {row} is {table[row, output]}, but "
                "must be a number of at least 0"
            )
        if (empty := table.sum(axis=1) == 0).any():
            raise OptschedError(f"row {int(np.argmax(empty))} of the chances holds none above 0")
        if len(given) and not 0 <= given.min() <= given.max() < len(table):
            raise OptschedError(
                f"requests have rows from {given.min()} to {given.max()}, but there are only 0 to "
                f"{len(table) - 1}"
            )
        if not 0 <= prior < np.inf:
            raise OptschedError(f"prior is {prior}, but must be a number of requests, 0 or more")
        object.__setattr__(self, "chances", frozen(table / table.sum(axis=1, keepdims=True)))
        object.__setattr__(self, "rows", given)
        object.__setattr__(self, "prior", float(prior))

    def mean(self) -> FloatArray:
        """Return the output that is expected of each request, before it is cut, shape (n,)."""
        expected = self.chances @ np.arange(1.0, self.chances.shape[1] + 1)
        return np.asarray(expected[self.rows])

    @classmethod
    @checked()
    def of_history(cls, history: Instance, prompts: npt.ArrayLike, longest: int) -> Beliefs:
        """Believe that outputs are as those of completed requests with similar prompts.

        Requests are grouped into fifths by prompt, whose outputs are smoothed on the logarithm; 2 %
        of the chance is spread over all outputs up to the longest.
        """
        known, prompts = history.outputs <= longest, as_integers("prompts", prompts)
        if not known.any():
            raise OptschedError(
                f"the history has no completed request with an output of at most {longest}, the "
                "largest that can be; take another one, or leave it out to learn while running"
            )
        from optsched._internal.small_kernels import smooth

        edges = _edges(history.prompts[known])
        _require_outputs(longest, len(edges) + 1)
        values, place = np.unique(history.outputs[known], return_inverse=True)
        counts = np.zeros((len(edges) + 1, len(values)), dtype=np.int64)
        np.add.at(counts, (np.searchsorted(edges, history.prompts[known]), place), 1)
        counts[counts.sum(axis=1) == 0] = counts.sum(axis=0)
        chances = np.zeros((len(counts), longest))
        smooth(values, counts, _BANDWIDTH, chances)
        return cls(_mixed(chances), np.searchsorted(edges, prompts))

    @classmethod
    @checked()
    def to_learn(cls, prompts: npt.ArrayLike, longest: int) -> Beliefs:
        """Believe at first that half of the outputs above any length exceed twice it, and learn."""
        given = as_integers("prompts", prompts)
        edges = _edges(given)
        _require_outputs(longest, len(edges) + 1)
        outputs = np.arange(1.0, longest + 1)
        chances = np.tile(1 / (outputs * (outputs + 1)), (len(edges) + 1, 1))
        return cls(chances, np.searchsorted(edges, given), _PRIOR)

    @classmethod
    def around(cls, estimates: npt.ArrayLike, log_error: float, longest: int) -> Beliefs:
        """Believe in estimates whose logarithm has a normal error, as those of a predictor.

        2 % of the chance is spread over all outputs up to the longest.
        """
        guessed, longest = as_floats("estimates", estimates), as_count("longest", longest)
        if not (guessed > 0).all():
            raise OptschedError(f"an estimate is {guessed.min()}, but must be above 0 tokens")
        log_error = as_number("log_error", log_error, lambda each: each > 0, "above 0")
        # Estimates that are within a tenth of the error of each other share a row.
        width = log_error / 10
        place = np.round(np.log(guessed) / width).astype(np.int64)
        places, rows = np.unique(place, return_inverse=True)
        _require_outputs(longest, len(places))
        scale = np.log(np.arange(1, longest + 1))
        squares = ((scale - places[:, None] * width) / log_error) ** 2
        nearest = squares.min(axis=1, keepdims=True)
        return cls(_mixed(np.exp((nearest - squares) / 2 - scale)), rows)


def _edges(prompts: IntArray) -> FloatArray:
    """Return the prompts at which one group ends and the next begins."""
    shares = np.arange(1, _GROUPS) / _GROUPS
    return np.unique(np.quantile(prompts, shares)).astype(np.float64)


def _require_outputs(longest: int, rows: int) -> None:
    """Refuse chances of so many outputs in so many rows where memory has no room for them."""
    require_room(longest, _CHANCE * rows, "chances of outputs", "take narrower intervals")


def _mixed(chances: FloatArray) -> FloatArray:
    """Return chances of which a small share is spread evenly, so that no output is impossible."""
    even = _UNIFORM_SHARE / chances.shape[1]
    return np.asarray((1 - _UNIFORM_SHARE) * chances / chances.sum(axis=1, keepdims=True) + even)


@checked()
@dataclass(frozen=True, eq=False, init=False)
class Forecast:
    r"""Requests as a policy sees them: the output is only known to lie in an interval.

    Parameters
    ----------
    prompts, arrivals, weights, labels
        As in `Instance`.
    lower, upper
        Bounds :math:`1 \le \ell_i \le u_i` that the outputs are believed to have, shape (n,).
        An upper bound above :math:`M - s_i` is lowered to it, since more cannot run.
    memory
        Tokens that the worker can hold.
    beliefs
        Which outputs are likely, cut to the intervals; None if nothing is known about that.

    Raises
    ------
    InstanceError
        If a lower bound is below 1, above the upper bound or too large for the memory, or the
        belief leaves nothing in an interval; it names the first request at fault.

    Examples
    --------
    >>> forecast = Forecast([3, 1], [0, 0], lower=[1, 2], upper=[9, 4], memory=8)
    >>> forecast.upper
    array([5, 4])
    """

    prompts: IntArray
    arrivals: IntArray
    lower: IntArray
    upper: IntArray
    memory: int
    weights: FloatArray | None
    labels: tuple[str, ...] | None
    beliefs: Beliefs | None

    def __init__(
        self,
        prompts: npt.ArrayLike,
        arrivals: npt.ArrayLike,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        memory: int,
        weights: npt.ArrayLike | None = None,
        labels: tuple[str, ...] | None = None,
        beliefs: Beliefs | None = None,
    ) -> None:
        low, high = as_integers("lower", lower), as_integers("upper", upper)
        sizes = as_integers("prompts", prompts)
        room = memory - sizes
        for broken, reason in (
            (low < 1, "is not at least 1"),
            (low > high, "has its lower bound above its upper bound"),
            (low > room, f"cannot run: with its prompt it needs more than the memory of {memory}"),
        ):
            if broken.any():
                request = int(np.argmax(broken))
                name = str(request) if labels is None else labels[request]
                raise InstanceError(
                    f"request {name}: the interval [{low[request]}, {high[request]}] {reason}",
                    request=request,
                    value=int(low[request]),
                )
        fields = (
            sizes,
            as_integers("arrivals", arrivals),
            low,
            frozen(np.minimum(high, room)),
            int(memory),
            None if weights is None else frozen(as_floats("weights", weights)),
            labels,
            beliefs,
        )
        for field, value in zip(dataclasses.fields(self), fields, strict=True):
            object.__setattr__(self, field.name, value)
        if beliefs is not None:
            self._check_beliefs(beliefs)

    def _check_beliefs(self, beliefs: Beliefs) -> None:
        if len(beliefs.rows) != len(self):
            raise InstanceError(
                f"there are {len(self)} requests, but beliefs about {len(beliefs.rows)}"
            )
        below = np.zeros((len(beliefs.chances), beliefs.chances.shape[1] + 1))
        np.cumsum(beliefs.chances > 0, axis=1, out=below[:, 1:])
        last = below.shape[1] - 1
        first = np.minimum(self.lower - 1, last)
        left = below[beliefs.rows, np.minimum(self.upper, last)] - below[beliefs.rows, first]
        if (left == 0).any():
            request = int(np.argmax(left == 0))
            raise InstanceError(
                f"request {self.label(request)}: the belief leaves no chance to any output in its "
                f"interval [{self.lower[request]}, {self.upper[request]}]; widen the interval, or "
                "spread a small share of the belief over all outputs",
                request=request,
                value=int(self.lower[request]),
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def label(self, request: int) -> str:
        """Return the label of a request, or its index."""
        return self.labels[request] if self.labels is not None else str(request)


@checked(OptschedError, turns=True)
def forecast(
    instance: Instance, intervals: str, beliefs: Beliefs | Instance | None = None
) -> Forecast:
    """Make the forecast of an instance that a policy gets to see.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    intervals
        "exact": the outputs themselves. "common:L,U": [L, U] for all (Robust Experiment 1).
        "classes:W": the class of width W that holds the output, [1, W], [W+1, 2W], ...
        (Experiment 2). "relative:X": the whole numbers in [(1 - X) o, (1 + X) o] (Experiment 3;
        its middle gives the output away to a policy that looks there). "column": the instance's
        own output_lower and output_upper, which are predictions and may miss the output; where one
        is missing, 1 or what fits.
    beliefs
        Which outputs are likely, or completed requests to learn that from; None: nothing is known.

    Raises
    ------
    InstanceError
        If an output lies outside an interval that is not a prediction.
    OptschedError
        If there are no such intervals, or their numbers are invalid.

    Examples
    --------
    >>> from optsched import Instance
    >>> instance = Instance([1, 1], [40, 130], memory=500)
    >>> known = forecast(instance, "classes:100")
    >>> known.lower, known.upper
    (array([  1, 101]), array([100, 200]))
    """
    lower, upper = _bounds(instance, intervals)
    outputs = instance.outputs
    outside = (outputs < lower) | (outputs > upper)
    if intervals == "column":  # predictions may miss, but not what fits
        lower = np.minimum(lower, instance.memory - instance.prompts)
    elif outside.any():
        request = int(np.argmax(outside))
        raise InstanceError(
            f"request {instance.label(request)}: the output {outputs[request]} is outside its "
            f"interval [{lower[request]}, {upper[request]}]",
            request=request,
            value=int(outputs[request]),
        )
    if beliefs is not None and not isinstance(beliefs, Beliefs):
        longest = int(np.minimum(upper, instance.memory - instance.prompts).max())
        beliefs = Beliefs.of_history(beliefs, instance.prompts, longest)
    return Forecast(
        instance.prompts,
        instance.arrivals,
        lower,
        upper,
        instance.memory,
        instance.weights,
        instance.labels,
        beliefs,
    )


def rough_forecasts(instance: Instance, seed: int = 0) -> Instance:
    """Return the requests with forecasts of outputs in `intervals="column"`, off by `ROUGH`."""
    errors = np.random.default_rng(seed).normal(0, ROUGH, len(instance))
    guessed = np.rint(instance.outputs * np.exp(errors))
    fits = np.clip(guessed, 1, instance.memory - instance.prompts).astype(np.int64)
    return instance.replace(output_lower=fits, output_upper=fits)


def coverage(instance: Instance, intervals: str) -> float:
    """Return the share of the requests whose output lies in its interval."""
    lower, upper = _bounds(instance, intervals)
    return float(((lower <= instance.outputs) & (instance.outputs <= upper)).mean())


def told_by(instance: Instance, intervals: str | None) -> Knowledge:
    """Return what intervals tell: the outputs where they leave nothing open, or there are none."""
    ends = () if intervals is None else _bounds(instance, intervals)
    return "outputs" if all((end == instance.outputs).all() for end in ends) else "forecast"


def described(instance: Instance, intervals: str) -> str:
    """Return intervals as they were asked for, and how many outputs they cover unless it is all."""
    share = coverage(instance, intervals)
    if intervals.startswith("relative"):  # whose middle gives the output away
        return f"{intervals} around the true outputs"
    return intervals if share == 1 else f"{intervals}, covering {100 * share:.3g} % of the outputs"


def check_intervals(intervals: str) -> None:
    """Refuse invalid intervals before any work is done."""
    _parsed(intervals)


def _bounds(instance: Instance, intervals: str) -> tuple[IntArray, IntArray]:
    name, numbers = _parsed(intervals)
    outputs = instance.outputs
    lower: npt.ArrayLike | None
    upper: npt.ArrayLike | None
    if name == "exact":
        lower = upper = outputs
    elif name == "common":
        lower, upper = map(int, numbers)
    elif name == "classes":
        width = int(numbers[0])
        below = (outputs - 1) // width * width
        lower, upper = below + 1, below + width
    elif name == "relative":
        # In whole numbers: 0.7 of 10 is 3 from below, not 3.0000000000000004.
        share, whole = numbers[0].numerator, numbers[0].denominator
        lower, upper = outputs - outputs * share // whole, outputs + outputs * share // whole
    else:
        lower, upper = instance.output_lower, instance.output_upper
        if lower is None and upper is None:
            raise OptschedError(
                "the intervals are to come from the trace's columns, but it has neither "
                "output_lower nor output_upper"
            )
    return (
        np.broadcast_to(np.asarray(1 if lower is None else lower), len(outputs)),
        np.broadcast_to(np.asarray(MAX_TOKENS if upper is None else upper), len(outputs)),
    )


def _parsed(intervals: str) -> tuple[str, list[Fraction]]:
    """Return the name of a maker and its numbers."""
    name, _, rest = intervals.partition(":")
    if name not in _FORMS:
        raise OptschedError(f"unknown intervals {intervals!r}: {nearest(name, _FORMS)}")
    count, form = _FORMS[name]
    parts = rest.split(",") if rest else []
    try:
        numbers = [Fraction(part) for part in parts]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if len(parts) != count or len(numbers) != count:
        raise OptschedError(f"intervals {intervals!r} should read {form}")
    whole = all(number.denominator == 1 for number in numbers)
    wish = ""
    if name == "common" and not (whole and 1 <= numbers[0] <= numbers[1] <= MAX_TOKENS):
        wish = "the bounds must be whole numbers with 1 <= L <= U"
    elif name == "classes" and not (whole and 1 <= numbers[0] <= MAX_TOKENS):
        wish = "the width of a class is a whole number of at least 1"
    elif name == "relative" and not (0 <= numbers[0] < 1 and numbers[0].denominator <= MAX_TOKENS):
        wish = "the relative error must be in [0, 1)"
    if wish:
        raise OptschedError(f"intervals {intervals!r}: {wish}")
    return name, numbers


#: How many numbers the makers take, and how to write them.
_FORMS = {
    "exact": (0, "exact"),
    "common": (2, "common:L,U with two whole numbers, such as common:1,1000"),
    "classes": (1, "classes:W with a whole number, such as classes:100"),
    "relative": (1, "relative:X with a number in [0, 1), such as relative:0.5"),
    "column": (0, "column"),
}


def steps_ahead(longest: int) -> IntArray:
    """Return the steps ahead at which the memory is looked at, each from 8 on a quarter further."""
    ahead = [*range(1, _ALL_UP_TO + 1)]
    while ahead[-1] < longest:
        ahead.append(ahead[-1] + ahead[-1] // 4)
    return np.array(ahead, dtype=np.int64)
