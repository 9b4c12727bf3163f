"""Policies by name."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from optsched._internal.imports import imported, names_module
from optsched._internal.rooms import elsewhere, every
from optsched.errors import PolicyError, require_distinct, require_known
from optsched.policies.base import SWITCHES, Policy, PriorityPolicy, with_rule
from optsched.policies.decision import ROLLING, TARDINESS, DecisionPolicy
from optsched.policies.priorities import BY_KEY, ENGINES, PRIORITIES, SELECTED, SORTED_F, SORTED_LP
from optsched.policies.robust import CHANCE, OVERFLOW, ROBUST
from optsched.policies.wait import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    PolicyLike: TypeAlias = str | Policy | Callable[[Any], Any]

_PLAIN = {policy.name: policy for policy in (*PRIORITIES, SORTED_F)}

#: The quick ones, which take milliseconds: what is run where no policies are named.
BASIC: dict[str, Policy] = {**_PLAIN, "area+window": with_rule(_PLAIN["area"], "window")}

#: All policies by the name that the command line knows; each has a description and a source.
POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        *_PLAIN.values(),
        *BY_KEY,
        TARDINESS,
        *SELECTED,
        *SORTED_LP,
        *ROBUST,
        *CHANCE,
        *OVERFLOW,
        *every("policy"),
        *ENGINES,
        *WAITING,
        *ROLLING,
    )
}
_SHIPPED = dict(POLICIES)


def is_shipped(name: str) -> bool:
    """Say whether a name means the same in every process: it is ours, and nobody replaced it."""
    plain = re.split("[:+]", name)[0]
    return plain in _SHIPPED and POLICIES.get(plain) is _SHIPPED[plain]


def takes_forecasts(policy: Policy) -> bool:
    """Say whether a policy of ours can be told forecasts in the place of outputs."""
    either = policy.needs.knows in ("either", "intervals")
    return either and policy.foresees != "nothing" and is_shipped(policy.name)


def get_policy(policy: PolicyLike) -> Policy:
    """Return a policy by name, perhaps with a rule or parameters; an object is passed through.

    A function becomes a `DecisionPolicy` or a `PriorityPolicy`, by the name of its parameter, and
    "module:name" is what a module of your own has under that name.

    >>> get_policy("area+backfill").name, get_policy("rolling:relax-lp").name
    ('area+backfill', 'rolling:relax-lp')
    >>> get_policy(lambda instance: -instance.outputs)
    PriorityPolicy(name='<lambda>', ...
    """
    if isinstance(policy, Policy):
        return policy
    if callable(policy) and not isinstance(policy, type):
        return _of_function(policy)
    if not isinstance(policy, str):
        raise PolicyError(
            f"{policy!r} is no policy: name one, such as 'area', or pass an object such as "
            "PriorityPolicy or DecisionPolicy"
        )
    plain, plus, rule = policy.partition("+")
    name, colon, parameters = plain.partition(":")
    if names_module(plain, POLICIES):
        found, colon = get_policy(imported(plain, "policy", POLICIES)), ""
    else:
        if name not in POLICIES and (sentence := elsewhere(name)):
            raise PolicyError(sentence)
        require_known("policy", name, POLICIES, PolicyError)
        found = POLICIES[name]
    if colon:
        found = found.parsed(parameters)
    if plus and set(rule.split("+")) <= {*SWITCHES}:
        return found.with_options(rule)
    return with_rule(found, rule) if plus else found


def _of_function(function: Callable[..., Any]) -> Policy:
    """Return the policy that a function of a state or of an instance is."""
    name = getattr(function, "__name__", type(function).__name__)
    text = (inspect.getdoc(function) or "a function").partition("\n")[0]
    try:
        parameters = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        parameters = []
    if parameters == ["state"]:
        return DecisionPolicy(name, text, function)
    if parameters == ["instance"]:
        return PriorityPolicy(name, text, function)
    raise PolicyError(
        f"the function {name!r} as a policy takes ({', '.join(parameters)}), but must take one "
        "argument: 'state', where it returns the requests to start now, or 'instance', where it "
        "returns a key per request; rename it, or wrap the function in DecisionPolicy or "
        "PriorityPolicy"
    )


def split_names(names: str) -> list[str]:
    """Split a list of policies as on the command line; parameters keep their commas."""
    return re.split(r"\s*,\s*(?![\s\d.]|load\b)", names.strip())


def get_policies(policies: Any = None) -> list[Policy]:
    """Return policies by name, each at most once; None means the basic ones."""
    if policies is None:
        return list(BASIC.values())
    several = hasattr(policies, "__iter__") and getattr(policies, "ndim", 1) > 0
    listed = policies if several and not isinstance(policies, str) else [policies]
    found = [get_policy(policy) for policy in listed]
    require_distinct("policy", [policy.name for policy in found], POLICIES)
    return found
