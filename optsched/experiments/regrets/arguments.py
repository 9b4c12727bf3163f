"""What `regret` and `overload_threshold` accept: one value or several, each once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.policies import Policy

Number = TypeVar("Number", int, float)


def policies_of(policies: str | Policy | Sequence[str | Policy]) -> Sequence[str | Policy]:
    """Return several policies as they are, and one in a list."""
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        return [policies]
    return policies


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def check_least(name: str, value: float, least: float, *, above: bool = False) -> None:
    """Check that a number is at least, or above, another."""
    if not is_number(value) or value < least or (above and value == least):
        limit = f"a number above {least:g}" if above else f"a number from {least:g}"
        raise OptschedError(f"{name} is {value!r}, but must be {limit}")


def numbers_of(name: str, values: Number | Sequence[Number]) -> list[Number]:
    """Return numbers as a list that is not empty and has none of them twice."""
    found = list(values) if isinstance(values, Iterable) else [values]
    for value in found:
        if not is_number(value):
            raise OptschedError(f"{name} has {value!r}, but must be numbers")
    if not found:
        raise OptschedError(f"{name} is empty; name at least one")
    if len(set(found)) < len(found):
        raise OptschedError(f"one of the {name} is there twice; take one out")
    return found


def seeds_of(seeds: Any) -> list[int]:
    """Return seeds: those named, or so many from 0 on."""
    if not isinstance(seeds, Iterable):
        if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
            raise OptschedError(f"seeds is {seeds!r}, but must be a whole number from 1, or a list")
        return list(range(seeds))
    found: list[float] = numbers_of("seeds", list(seeds))
    for seed in found:
        if seed < 0 or seed != int(seed):
            raise OptschedError(f"{seed} is among the seeds, but must be a whole number from 0")
    return [int(seed) for seed in found]
