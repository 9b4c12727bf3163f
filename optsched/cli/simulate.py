"""The command that runs one policy and shows everything that happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    NO,
    Output,
    check_writable,
    knowledge_options,
    shared_options,
    trace_options,
)
from optsched.errors import PolicyError

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.policies import Policy


@click.command()
@shared_options
@trace_options
@click.option("--policy", required=True, metavar="P", help="Name of a policy, such as a-min.")
@knowledge_options
@click.option("--alpha", type=float, help="Share of memory that alpha-... policies protect.")
@click.option("--beta", type=float, help="Probability that alpha-beta-clearing sends one back.")
@click.option("--log", type=click.Path(), help="Write all attempts to F.csv, .csv.gz or .parquet.")
def simulate(
    instance: Instance,
    output: Output,
    policy: str,
    intervals: str | None,
    rule: Any,
    alpha: float | None,
    beta: float | None,
    log: str | None,
) -> int:
    """Run one policy: latency, first tokens, memory, evictions, and every attempt in a log.

    The exit code is 1 if the policy does not complete all requests, because its run repeats itself
    or was given up.
    """
    from optsched.execution import check_log_name

    if log is not None:
        check_log_name(log)
        check_writable(log)
    chosen = _with_parameters(policy, alpha, beta)
    with output.progress(f"running {chosen.name}"):
        execution = optsched.execute(
            instance,
            chosen,
            intervals=intervals,
            rule=rule,
            seed=click.get_current_context().params["seed"],
        )
    if log is not None:
        execution.to_log(log)
    output.say(str(execution))
    output.result(execution.metrics())
    return DONE if execution.all_complete else NO


def _with_parameters(name: str, alpha: float | None, beta: float | None) -> Policy:
    from optsched.policies import OverflowPolicy, get_policy

    policy = get_policy(name)
    if alpha is None and beta is None:
        return policy
    if not isinstance(policy, OverflowPolicy):
        raise PolicyError(f"policy {name!r} has neither alpha nor beta; leave them out")
    return policy.with_parameters(alpha, beta)
