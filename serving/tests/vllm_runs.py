"""Runs of vLLM's scheduler, by the kernel and by its literal twin, on the same requests."""

from dataclasses import replace

import literal_vllm
import numpy as np

import optsched
from optsched import Beliefs, Instance
from optsched.clock import LinearClock
from optsched.policies import get_policy

CLOCK = LinearClock("all", 0.02, 0.001, 0.003, 0.0005, 0.0001, 0.0002)


def policy_of(case, name="vllm"):
    options = {"enable_prefix_caching": False} | case
    options.pop("policy")
    return replace(get_policy(name), scheduling_policy=case["policy"], **options)


def kernel_run(requests, case, clock, until=np.inf, name="vllm", widths=None, beliefs=None):
    """Run requests (prompt, output, tick of a microsecond, priority) in the package.

    Widths are those of the intervals in which the outputs are known to lie, below and above;
    beliefs are chances and the row of each request.
    """
    rows = sorted(range(len(requests)), key=lambda i: requests[i][2])
    prompts, outputs, ticks, priorities = np.array([requests[i] for i in rows]).T
    memory = (case["num_gpu_blocks"] - 1) * case["block_size"]
    instance = Instance(
        prompts,
        outputs,
        max(memory, int((prompts + outputs).max())),
        ticks,
        labels=rows,
        seconds_per_step=1e-6,
        priorities=priorities,
    )
    known = {}
    if widths is not None:
        lower, upper = bounds(requests, widths, instance.memory)
        instance = instance.replace(output_lower=lower[rows], output_upper=upper[rows])
        known = {"intervals": "column"}
        if beliefs is not None:
            chances, groups = beliefs
            known["beliefs"] = Beliefs(chances, np.array(groups)[rows])
    return optsched.run(instance, policy_of(case, name), clock=clock, until=until, **known), rows


def bounds(requests, widths, memory):
    """Return lower and upper bounds of the outputs that leave room for the prompts."""
    prompts, outputs = np.array([request[:2] for request in requests]).T
    below, above = widths
    return np.maximum(1, outputs - below), np.minimum(outputs + above, memory - prompts)


def twin_run(requests, case, clock, until=np.inf, scheduler=literal_vllm.Scheduler):
    """Run the same literally."""
    made = [
        literal_vllm.Request(index, prompt, output, tick * 1e-6, priority)
        for index, (prompt, output, tick, priority) in enumerate(requests)
    ]
    return literal_vllm.run(made, literal_vllm.Settings(**case), clock, until, scheduler)


def same(run, rows, outcome):
    """Whether the package and the twin agree in all that there is."""
    requests = [outcome.requests[index] for index in rows]
    made = [r.first is not None for r in requests]
    return (
        run.statistics.tolist() == [list(batch.row) for batch in outcome.batches]
        and run.log.contents.tolist() == [list(content) for content in outcome.contents]
        and np.allclose(run.log.spans, np.reshape(outcome.spans, (-1, 2)), rtol=1e-12)
        and run.first_batch.tolist() == [-1 if r.first is None else r.first for r in requests]
        and run.last_batch.tolist() == [-1 if r.last is None else r.last for r in requests]
        and (run.first_batch >= 0).tolist() == made
        and run.preempted.tolist() == [r.preempted for r in requests]
        and run.preempted_tokens_by_request.tolist() == [r.lost for r in requests]
    )
