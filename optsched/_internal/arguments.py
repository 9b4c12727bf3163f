"""What callers pass: counts, numbers, and arguments as their annotations say, in one sentence."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_origin

import numpy as np

from optsched.errors import InstanceError, OptschedError, nearest, shown

T = TypeVar("T")
if TYPE_CHECKING:
    Entry = TypeVar("Entry", bound="Callable[..., Any]")

MAX_TOKENS = 10**9  # memory-time areas of single requests stay within 64-bit integers
MAX_SEED = 2**63 - 1
LARGEST = 1e300  # of a number that is no count

#: Words for what an annotation names. An argument that may be anything else is left to its owner.
_WORDS = {
    "int": "a whole number below 2^63",
    "float": "a number",
    "bool": "True or False",
    "str": "a text",
    "Path": "a path",
    "Callable": "a function",
    "Sequence": "a list",
    "Iterable": "a list",
    "dict": "a dictionary",
    "None": "",
}
#: What else is called so.
_ALIASES = {
    "tuple": ("Sequence",),
    "Literal": ("str",),
    **dict.fromkeys(("Rule", "Objective", "ScheduleObjective"), ("str",)),
    **dict.fromkeys(("BoundMethod", "Executor"), ("str",)),
    "AnyCertificate": (
        *("Certificate", "ConfigurationCertificate", "ClockCertificate", "CapacityCertificate"),
        *("SawtoothCertificate", "MakespanCertificate"),
    ),
    "Clock": ("str", "Callable", "LinearClock", "FunctionClock"),  # as of `get_clock`
    "Information": ("Oracle", "NoInformation", "Predictor"),
}
_CLASSES = (
    *("Beliefs", "BalanceState", "Bound", "ClockBound", "Cluster", "Execution", "Forecast"),
    *("Instance", "LinearModel", "ModelFacts", "Policy", "PowerLaw", "PriorityPolicy"),
    *("RequestTypes", "Router", "Running", "RunSettings", "Schedule", "Slo", "SolveParams"),
    *(name for kind in ("AnyCertificate", "Clock", "Information") for name in _ALIASES[kind]),
)


def noting(kind: type[T], names: Collection[str], read: set[str]) -> type[T]:
    """Return a kind of objects that note which of some attributes are read."""

    class Noting(kind):  # type: ignore[misc,valid-type]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

    return cast("type[T]", Noting)


def noted(value: T, names: Collection[str]) -> tuple[T, set[str]]:
    """Return a copy of an object, and what will be noted of the attributes that are read of it."""
    read: set[str] = set()
    copy = object.__new__(noting(type(value), names, read))
    vars(copy).update(vars(value))
    return copy, read


def whole(value: object) -> int | None:
    """Return a count given as any kind of number; None if it is not a count."""
    number = _plain(value)
    if number is None or not (isinstance(number, Integral) or number == math.floor(number)):
        return None
    return int(number)


def as_count(
    name: str,
    value: object,
    least: int = 1,
    most: int = MAX_TOKENS,
    *,
    of: str = "",
    error: type[OptschedError] = InstanceError,
) -> int:
    """Turn a count into an integer: 3.0 and NumPy numbers are counts, True and 2.5 are not."""
    number = whole(value)
    if number is None or not least <= number <= most:
        raise error(
            f"{name} is {shown(value)}, but must be a whole number{of} from {least} to {most}"
        )
    return number


def as_number(
    name: str,
    value: object,
    good: Callable[[float], bool],
    wish: str,
    error: type[OptschedError] = InstanceError,
) -> float:
    """Turn a number into a float; refuse one that is not finite or not `good`."""
    number = _plain(value)
    if number is None or abs(number) > LARGEST or not good(number):
        raise error(f"{name} is {shown(value)}, but must be {wish}")
    return float(number)


def _plain(value: object, *, infinite: bool = False) -> Any:
    """Return a number without its NumPy type, also an infinite one if it may be; else None."""
    value = _python(value)
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, Real):
        return None
    fits = isinstance(value, Integral) or (
        not math.isnan(value) if infinite else math.isfinite(value)
    )
    return value if fits else None


def _python(value: Any) -> Any:
    """Return a number of NumPy as one of Python; dates and durations, which count units, stay."""
    scalar = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if scalar and value.dtype.kind not in "mM" else value


def refuse_turns(instance: Any, taker: str, error: type[OptschedError] = OptschedError) -> None:
    """Refuse requests whose arrivals depend on the run."""
    if getattr(instance, "follows", None) is not None:
        raise error(
            f"requests of {instance.name!r} arrive when others have ended, which {taker} does not "
            "allow for; run policy vllm on a clock first, and pass the instance of that run, whose "
            "arrivals are known"
        )


def checked(
    error: type[OptschedError] = OptschedError, turns: bool = False
) -> Callable[[Entry], Entry]:
    """Check arguments against annotations, and refuse instances with turns where not asked for."""

    def decorate(entry: Entry) -> Entry:
        door = ""
        if isinstance(entry, type):
            door = "__new__" if issubclass(entry, tuple) else "__init__"
        function = cast("Callable[..., Any]", getattr(entry, door) if door else entry)
        parameters = inspect.signature(function).parameters
        names = [name for name, each in parameters.items() if each.kind != each.VAR_KEYWORD]
        closed = len(names) == len(parameters)
        kinds = {name: _kinds(parameters[name].annotation, entry) for name in names}

        def fit(name: str, value: object) -> Any:
            if not kinds.get(name) or value is parameters[name].default:
                return value
            for kind in kinds[name]:
                if (fitting := _as(kind, value)) is not _NOT:
                    if kind == "Instance" and not turns:
                        refuse_turns(value, entry.__name__, error)
                    return fitting
            *first, last = filter(None, map(_word, kinds[name]))
            wish = f"{', '.join(first)} or {last}" if first else last
            raise error(f"{name} is {shown(value)}, but must be {wish}")

        @functools.wraps(function)
        def call(*given: object, **named: object) -> Any:
            fitting = [fit(name, value) for name, value in zip(names, given, strict=False)]
            if closed and (unknown := [name for name in named if name not in names]):
                known = nearest(unknown[0], [name for name in names if name != "self"])
                raise error(f"{entry.__name__} has no argument {unknown[0]!r}: {known}")
            named = {name: fit(name, value) for name, value in named.items()}
            found = function(*fitting, *given[len(names) :], **named)
            if not door and hasattr(found, "to_html"):  # the foot of its page says what was called
                said = [*map(shown, given), *(f"{name}={shown(named[name])}" for name in named)]
                vars(found)["called"] = f"{entry.__name__}({', '.join(said)})"
            return found

        if not door:
            return cast("Entry", call)
        setattr(entry, door, call)
        return entry

    return decorate


def _kinds(annotation: object, entry: object) -> list[str]:
    """Return what an annotation names; nothing where it names more than is checked here."""
    text, before = str(getattr(annotation, "__forward_arg__", annotation)), ""
    while text != before:
        text, before = re.sub(r"\[[^\[\]]*\]", "", text), text
    kinds: list[str] = []
    for kind in map(str.strip, text.split("|")):
        chosen = get_origin(vars(sys.modules[entry.__module__]).get(kind)) is Literal
        kinds += ("str",) if chosen else _ALIASES.get(kind, (kind,))
    return kinds if all(kind in _WORDS or kind in _CLASSES for kind in kinds) else []


def _word(kind: str) -> str:
    return _WORDS.get(kind, f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}")


_NOT = object()


def _as(kind: str, value: object) -> Any:
    """Return a value as a kind of argument, or that it is not one."""
    if kind in ("int", "float"):
        number = whole(value) if kind == "int" else _plain(value, infinite=True)
        large = isinstance(number, Integral) and abs(int(number)) > MAX_SEED
        return _NOT if number is None or large else number
    if kind == "bool":
        return bool(value) if isinstance(value, bool | np.bool_) else _NOT
    if kind == "Callable":
        good = callable(value) and not isinstance(value, type)
    elif kind in ("Sequence", "Iterable"):
        good = isinstance(value, Sequence if kind == "Sequence" else Iterable)
        good = getattr(value, "ndim", good and not isinstance(value, str | bytes)) > 0
    elif kind in ("None", "Path"):
        good = value is None if kind == "None" else isinstance(value, PathLike)
    else:
        good = kind in {each.__name__ for each in type(value).__mro__}
    return value if good else _NOT
