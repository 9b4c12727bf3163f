"""The command that runs one policy and shows everything that happened."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, cast

import click

import optsched
from optsched.cli.common import (
    DONE,
    INTERRUPTED,
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
    from optsched.execution import Execution
    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate.seconds.execution import ClockedRun


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
    "--max-num-seqs",
    type=int,
    metavar="B",
    help="Requests of a batch of mixed, vllm and sarathi at most.",
)
@click.option(
    "--max-num-batched-tokens",
    type=int,
    metavar="B",
    help="Tokens of a batch of mixed, vllm and sarathi at most.",
)
@click.option(
    "--alpha", type=float, metavar="X", help="Share of memory that alpha-... policies protect."
)
@click.option(
    "--beta",
    type=float,
    metavar="X",
    help="Probability that alpha-beta-clearing preempts a request.",
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
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    alpha: float | None,
    beta: float | None,
    log: str | None,
) -> int:
    """Run one policy and keep all that happened."""
    from optsched.execution import check_log_name

    if log is not None:
        check_log_name(log)
        check_writable(log)
    chosen = _with_limits(
        _with_parameters(policy, alpha, beta), max_num_seqs, max_num_batched_tokens
    )
    seed = click.get_current_context().params["seed"]
    check_clock_options(clock, until, warm_up)
    known: dict[str, Any] = {"intervals": intervals, "rule": rule, "seed": seed}
    measured: dict[str, Any] = {}
    if clock is not None:
        known |= {"clock": clock, "until": math.inf if until is None else until}
        measured["warm_up"] = warm_up
    with output.progress(f"running {chosen.name}"):
        run: Execution | ClockedRun = optsched.run(instance, chosen, **known)
        metrics = run.metrics(**measured)
    if log is not None:
        run.to_log(log)
    output.say(str(run))
    output.result(metrics)
    if run.decisions is not None and run.decisions.interrupted:
        return INTERRUPTED
    return DONE if run.loop is None and run.stall is None else NO


def _with_parameters(name: str, alpha: float | None, beta: float | None) -> Policy:
    from optsched.policies import get_policy

    policy: Any = get_policy(name)
    if alpha is None and beta is None:
        return cast("Policy", policy)
    if policy.needs.kind != "threshold":
        raise PolicyError(f"policy {name!r} has neither alpha nor beta; leave them out")
    return cast("Policy", policy.with_parameters(alpha, beta))


def _with_limits(policy: Any, requests: int | None, tokens: int | None) -> Policy:
    limits = {"max_num_seqs": requests, "max_num_batched_tokens": tokens}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if given and policy.needs.kind != "engine":
        raise PolicyError(f"policy {policy.name!r} has no limits of batches; leave them out")
    return cast("Policy", dataclasses.replace(policy, **given) if given else policy)
