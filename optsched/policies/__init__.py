"""Policies by name: who is admitted first. None of them knows the simulator that runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from optsched.errors import PolicyError, nearest
from optsched.policies.base import RULES, BatchPolicy, PriorityPolicy, Rule, with_rule
from optsched.policies.decision import DecisionPolicy
from optsched.policies.overflow import OVERFLOW, OverflowPolicy
from optsched.policies.priorities import PRIORITIES
from optsched.policies.robust import ROBUST, IntervalPolicy
from optsched.policies.rolling import ROLLING, RollingPolicy
from optsched.policies.serving import ENGINES, EnginePolicy
from optsched.policies.sorted_f import SELECTED, SORTED_F
from optsched.policies.sorted_lp import SORTED_LP
from optsched.policies.wait import WAITING, NestedWaitPolicy, WaitingPolicy, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BASIC",
    "POLICIES",
    "RULES",
    "BatchPolicy",
    "DecisionPolicy",
    "EnginePolicy",
    "IntervalPolicy",
    "NestedWaitPolicy",
    "OrderPolicy",
    "OverflowPolicy",
    "Policy",
    "PriorityPolicy",
    "RollingPolicy",
    "Rule",
    "WaitPolicy",
    "WaitingPolicy",
    "get_policies",
    "get_policy",
    "split_names",
    "with_rule",
]

#: Policies that know the outputs and never cancel: they are a matter of order alone.
OrderPolicy = PriorityPolicy | BatchPolicy

Policy = (
    OrderPolicy
    | IntervalPolicy
    | OverflowPolicy
    | DecisionPolicy
    | EnginePolicy
    | WaitingPolicy
    | RollingPolicy
)

#: The quick ones, which take milliseconds: what is run where nobody names policies.
BASIC: dict[str, OrderPolicy] = {policy.name: policy for policy in (*PRIORITIES, SORTED_F)}

#: All policies by the name that the command line knows.
POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        *BASIC.values(),
        *SELECTED,
        *SORTED_LP,
        *ROBUST,
        *OVERFLOW,
        *ENGINES,
        *WAITING,
        *ROLLING,
    )
}


def get_policy(policy: str | Policy) -> Policy:
    """Look a policy up by name; a policy object is passed through.

    Parameters
    ----------
    policy
        A name out of `POLICIES`, perhaps with a rule as in "area+backfill" or with parameters as in
        "alpha-beta-clearing:0.1,0.2" or "rolling:relax-lp", or a policy object.

    Returns
    -------
    Policy
        The policy object.

    Raises
    ------
    PolicyError
        If there is no policy of that name, no rule or no such parameter.

    Examples
    --------
    >>> get_policy("area").title
    'smallest memory-time first'
    >>> get_policy("aera")
    Traceback (most recent call last):
        ...
    optsched.errors.PolicyError: unknown policy 'aera': did you mean 'area'? Known: ...
    """
    if not isinstance(policy, str):
        return policy
    plain, plus, rule = policy.partition("+")
    name, colon, parameters = plain.partition(":")
    if name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}: {nearest(name, POLICIES)}")
    found = POLICIES[name]
    if colon:
        if not isinstance(found, OverflowPolicy | RollingPolicy):
            raise PolicyError(f"policy {name!r} has no parameters; leave ':{parameters}' out")
        found = found.parsed(parameters)
    if not plus:
        return found
    if not isinstance(found, OrderPolicy):
        raise PolicyError(
            f"policy {name!r} admits by rules of its own; the rule {rule!r} is for policies that "
            "order requests by their outputs"
        )
    return with_rule(found, cast("Rule", rule))


def split_names(names: str) -> list[str]:
    """Split a list of policies as on the command line; parameters keep their commas.

    Parameters
    ----------
    names
        Names between commas.

    Returns
    -------
    list of str
        One entry per policy.

    Examples
    --------
    >>> split_names("area,alpha-beta-clearing:0.1,0.2,a-min")
    ['area', 'alpha-beta-clearing:0.1,0.2', 'a-min']
    """
    return re.split(r",(?![\d.])", names)


def get_policies(policies: Iterable[str | Policy] | None) -> list[Policy]:
    """Look several policies up; None means the basic ones.

    Parameters
    ----------
    policies
        Names or policy objects, each at most once.

    Returns
    -------
    list of Policy
        The policies, in the order given.
    """
    if policies is None:
        return list(BASIC.values())
    found = [get_policy(policy) for policy in policies]
    names = [policy.name for policy in found]
    if not found:
        raise PolicyError(f"no policy given; known: {', '.join(sorted(POLICIES))}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(f"the policy {twice[0]!r} is given twice")
    return found
