"""The errors optsched raises; each message says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


#: Known names that a message lists in full beside a close one.
_LISTED = 40
_BEGUN = 3  # letters of a name that is known by how it begins
_SHOWN = 80  # characters of a value
_UNITS = "s", "ms", "us", "ns"  # that a name may lack
_SLIP = 0.84  # likeness of words of which one is the other, mistyped


class OptschedError(Exception):
    """Base class: catching it catches every error that optsched raises on purpose.

    Examples
    --------
    >>> import optsched
    >>> try:
    ...     optsched.Instance(prompts=[3], outputs=[0], memory=10)
    ... except optsched.OptschedError as error:
    ...     print(error)
    request 0: outputs is 0, but every request makes at least 1 token
    """


class InstanceError(OptschedError):
    """An instance, a trace or a workload name is not valid.

    Attributes
    ----------
    column, request
        Name of the field and index of the first request at fault, where there is one.
    value
        The offending value.
    reason
        What is wrong with the value, without its place.
    """

    def __init__(
        self,
        message: str,
        *,
        column: str | None = None,
        request: int | None = None,
        value: object = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.column = column
        self.request = request
        self.value = value
        self.reason = reason or message


class ScheduleError(OptschedError):
    """A schedule does not belong to its instance (a feasible one is another question: `check`)."""


class PolicyError(OptschedError):
    """A policy is unknown or cannot run on this instance."""


class ClockError(OptschedError):
    """A clock is unknown, or would let a batch take no time or a negative one."""


class ModelError(OptschedError):
    """A model, or a point of one, is not valid."""


class CertificateError(OptschedError):
    """A certificate is malformed or was made for another instance."""


class FileError(OptschedError, OSError):
    """A file cannot be written."""


def unreadable(where: object, reason: OSError) -> str:
    """Say why a file cannot be read."""
    if isinstance(reason, FileNotFoundError):
        return f"there is no {where}; check its name"
    return f"cannot read {where}: {reason.strerror}; check its name"


@contextmanager
def named(where: object) -> Iterator[None]:
    """Name a file in the errors about what it holds."""
    try:
        yield
    except OptschedError as error:
        said = str(error).removeprefix("the JSON text: ")
        error.args = (said if str(where) in said else f"{where}: {said}",)
        raise


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are closest to a mistyped one."""
    names = sorted(known)
    low = name.lower()
    begun = [each for each in names if len(low) >= _BEGUN and each.lower().startswith(low)]
    close = sorted(begun, key=len) or difflib.get_close_matches(low, names, n=1, cutoff=0.5)
    listed = ", ".join(names)
    if not close:
        return f"known: {listed}"
    rest = f"Known: {listed}" if len(names) <= _LISTED else f"There are {len(names)}"
    return f"did you mean {close[0]!r}? {rest}"


def mistyped(name: str, known: Iterable[str]) -> str:
    """Return the known name of which another is a slip of the pen, or nothing.

    Every word of it must be one: total_tokens is nothing but itself, promt_tokens is prompt_tokens.
    """

    def words(text: str) -> list[str]:
        return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).lower().split()

    def alike(other: str) -> float:
        mine, its = words(name), words(other)
        if "".join(mine) == "".join(its):
            return 1.0
        if not 0 < len(mine) <= len(its) or {*its[len(mine) :]} - {*_UNITS}:
            return 0.0
        pairs = zip(mine, its, strict=False)
        return min(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    return max((each for each in known if alike(each) >= _SLIP), key=alike, default="")


def nearest_column(name: str, known: Iterable[str]) -> str:
    """Say which column a mistyped one is; none that would say something else."""
    best = mistyped(name, names := sorted(known))
    return f"did you mean {best!r}?" if best else f"known: {', '.join(names[:_LISTED])}"


def shown(value: object) -> str:
    """Write a refused value on one line, cut to what shows what it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def require(
    value: object,
    kinds: type | tuple[type, ...],
    name: str,
    wish: str,
    error: type[OptschedError] = OptschedError,
) -> None:
    """Reject an argument of the wrong kind."""
    if not isinstance(value, kinds):
        raise error(f"{name} is {shown(value)}, but must be {wish}")


def require_known(
    what: str, value: object, known: Iterable[str], error: type[OptschedError] = ModelError
) -> None:
    """Reject an unknown choice."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise error(f"unknown {what} {value!r}: {nearest(str(value), names)}")


def require_distinct(what: str, names: list[str], known: Iterable[str]) -> None:
    """Reject a list of names that is empty, or has one twice."""
    if not names:
        raise PolicyError(f"no {what} given; known: {', '.join(sorted(known))}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(
            f"the {what} {twice[0]!r} is given twice; rename or leave out one of them"
        )


class SolverError(OptschedError):
    """A solver is unknown, not installed, cannot solve the model, or gave no answer."""


class InfeasibleError(SolverError):
    """No answer exists: the constraints contradict each other."""


def is_interrupt(error: BaseException | None) -> bool:
    """Tell whether Ctrl-C is behind an error: numba makes it one while it loads a kernel."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        if str(error).startswith("no compiled object yet"):
            return True
        error = error.__cause__
    return error is not None
