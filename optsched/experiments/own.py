"""Policies, routers and clocks of one's own: what they are, and how other processes get them."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from optsched._internal.fingerprints import Identity
from optsched.clock import get_clock
from optsched.errors import OptschedError, PolicyError
from optsched.policies import get_policy, is_shipped
from optsched.problem.workers import Workers, get_router, routers
from optsched.simulate import run

if TYPE_CHECKING:
    from types import ModuleType

    from optsched.policies import Policy
    from optsched.problem.instance import Instance

_REHEARSED = 8  # requests that a policy is tried on
PLAIN = (str, int, float, list, dict, type(None))


@dataclass(frozen=True)
class Own:
    """An object of the user's, as it is sent to other processes."""

    name: str
    fingerprint: str  # of its code and its data: the same in every process
    content: bytes = field(repr=False, compare=False)

    def load(self) -> Any:
        """Return a copy of the object, so that no run sees what another has left in it."""
        return pickle.loads(self.content)

    def __str__(self) -> str:
        return self.name


def carried(policy: Policy) -> str | Own:
    """Return a policy as it is sent: by its name where that means the same in every process."""
    with suppress(PolicyError, ValueError):  # ValueError: arrays are compared
        if is_shipped(policy.name) and get_policy(policy.name) == policy:
            return policy.name
    return portable(policy)


def carried_option(name: str, value: Any) -> Any:
    """Return a setting of a run as it is sent: plain data as it is, memories as text, no files."""
    if name == "clock" and isinstance(value, str | list | tuple) and ".json" in str(value):
        clocks = get_clock(value) if isinstance(value, str) else [get_clock(each) for each in value]
        return replace(portable(clocks), name=str(value))
    if name == "workers" and not isinstance(value, int | str | None):
        several = value if isinstance(value, Workers) else Workers(value)
        if several.eligible is None:
            return str(several) if len(several) > 1 else f"{several.total}x1"
    if name == "router" and value is not None:
        if routers.is_shipped(value):
            return value
        value = get_router(value)
    return value if isinstance(value, PLAIN) else portable(value)


def loaded(value: Any) -> Any:
    """Return what was carried."""
    return value.load() if isinstance(value, Own) else value


def rehearse(policy: str | Own, instance: Instance, **options: Any) -> None:
    """Run a policy of one's own on a few requests, so that what it cannot do is said at once."""
    few = instance.take(range(min(_REHEARSED, len(instance))))
    try:
        run(few, loaded(policy), **{name: loaded(value) for name, value in options.items()})
    except Exception as error:  # whatever code of the user's raises becomes a sentence
        kind = "" if isinstance(error, OptschedError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        raise PolicyError(
            f"policy {str(policy)!r} fails on the first {len(few)} requests of {instance.name}: "
            f"{reason}; correct it"
        ) from error


def name_of(value: Any) -> str:
    """Return what an object is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__))


def portable(value: Any) -> Own:
    """Make an object ready for other processes, with all code that is not installed there."""
    import cloudpickle

    name, identity = name_of(value), Identity(ordered=True)
    registered: list[ModuleType] = []
    try:
        fingerprint = identity.of(value)
        for module in identity.modules:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        content = cloudpickle.dumps(value)
        pickle.loads(content)
    except Exception as error:  # a pickler raises anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(
            f"{name!r} cannot be sent to other processes or told from others: {reason}; make it of "
            "functions and plain data"
        ) from None
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
    return Own(name, fingerprint, content)
