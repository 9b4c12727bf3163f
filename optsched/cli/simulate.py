"""The command that runs one policy and shows everything that happened."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    NO,
    Output,
    check_clock_options,
    check_writable,
    clock_options,
    knowledge_options,
    shared_options,
    trace_options,
)
from optsched.cli.presentation import command, examples
from optsched.errors import PolicyError

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.policies import Policy


@command(
    epilog=examples(
        "simulate trace.csv --memory 16492 --policy area --log attempts.csv",
        "simulate family:uniform,n=50 --policy a-min --intervals relative:0.5",
    )
)
@shared_options
@trace_options
@click.option("--policy", required=True, metavar="P", help="Name of a policy, such as a-min.")
@knowledge_options
@clock_options
@click.option(
    "--batch-requests", type=int, metavar="B", help="Requests at a time of mixed, vllm and sarathi."
)
@click.option(
    "--batch-tokens", type=int, metavar="B", help="Tokens of a batch of mixed, vllm and sarathi."
)
@click.option(
    "--alpha", type=float, metavar="X", help="Share of memory that alpha-... policies protect."
)
@click.option(
    "--beta",
    type=float,
    metavar="X",
    help="Probability that alpha-beta-clearing sends one back.",
)
@click.option("--log", type=click.Path(), help="Write all attempts to a .csv, .csv.gz or .parquet.")
def simulate(
    instance: Instance,
    output: Output,
    policy: str,
    intervals: str | None,
    rule: Any,
    clock: str | None,
    until: float | None,
    warm_up: float,
    batch_requests: int | None,
    batch_tokens: int | None,
    alpha: float | None,
    beta: float | None,
    log: str | None,
) -> int:
    """Run one policy and keep all that happened.

    Shown are latency, first tokens, memory and evictions; --log has all attempts. The exit code is
    1 if the policy does not complete all requests, because its run repeats itself or was given up.
    """
    from optsched.execution import check_log_name

    if log is not None:
        check_log_name(log)
        check_writable(log)
    chosen = _with_limits(_with_parameters(policy, alpha, beta), batch_requests, batch_tokens)
    seed = click.get_current_context().params["seed"]
    check_clock_options(clock, until, warm_up)
    if clock is not None:
        with output.progress(f"running {chosen.name}"):
            run = optsched.execute(
                instance,
                chosen,
                clock=clock,
                intervals=intervals,
                rule=rule,
                seed=seed,
                until=math.inf if until is None else until,
            )
            metrics = run.metrics(warm_up)
        if log is not None:
            run.to_log(log)
        output.say(str(run))
        output.result(metrics)
        return DONE if run.loop is None and run.stall is None else NO
    with output.progress(f"running {chosen.name}"):
        execution = optsched.execute(
            instance,
            chosen,
            intervals=intervals,
            rule=rule,
            seed=seed,
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


def _with_limits(policy: Policy, requests: int | None, tokens: int | None) -> Policy:
    from optsched.policies import EnginePolicy

    if requests is None and tokens is None:
        return policy
    if not isinstance(policy, EnginePolicy):
        raise PolicyError(f"policy {policy.name!r} has no limits of batches; leave them out")
    return dataclasses.replace(
        policy,
        requests_most=policy.requests_most if requests is None else requests,
        tokens_most=policy.tokens_most if tokens is None else tokens,
    )
