"""Lists of requests against the proof of Sorted-F Theorem 3, whose optima are known."""

# Prompts are 1 or more. With more copies every request takes a smaller share of the memory, as the
# paper's model has it, and the ratios stay.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched_papers.sorted_f.transformed import READINGS, optimal_align

if TYPE_CHECKING:
    from fractions import Fraction


def long_first(long: int, steps: int, copies: int = 1) -> Schedule:
    """Start requests of `long` tokens at once, and as many of one token at each of some steps."""
    # The short ones fill what the long ones leave at the last of these steps. No request can
    # complete before its output, and no step completes more than `copies` short ones; so this is
    # optimal, and every optimum has these starts. Theorem 7 puts the long ones, which fill the
    # memory by their peaks, before nearly all short ones, though they run beside them.
    memory = copies * (long + 1)
    peak = memory // copies - (steps + 1)
    if (copies + 1) * peak <= memory:
        raise ValueError(f"{copies + 1} short requests of {peak} tokens fit into {memory}")
    shorts = copies * steps
    prompts, outputs = [1] * copies + [peak - 1] * shorts, [long] * copies + [1] * shorts
    starts = [0] * copies + np.repeat(np.arange(steps), copies).tolist()
    return Schedule(Instance(prompts, outputs, memory), starts)


def short_beside_long(long: int, ones: int, copies: int = 1) -> Schedule:
    """Start `copies` requests of `long` tokens at 0, with `ones` of one each, and as many later."""
    # The prompts of the long ones are so large that no more than `copies` of them ever run
    # together; so this is optimal, and every optimum has these starts. One more request, which runs
    # from first to last, makes a single group of all in Theorem 7. What starts at 0 is a batch
    # there, whose mean is small if there are many short ones; Sorted-F serves these earlier.
    rest = copies * 2 * ones + 2 * long + 1  # peaks of the short ones and of the longest one
    prompt = copies * long + rest
    memory = copies * (prompt + long) + rest
    shorts = copies * ones
    prompts = [1] * (shorts + 1) + [prompt] * 2 * copies
    outputs = [1] * shorts + [2 * long] + [long] * 2 * copies
    starts = [0] * (shorts + 1 + copies) + [long] * copies
    return Schedule(Instance(prompts, outputs, memory), starts)


def least_align(best: Schedule) -> Fraction:
    """Return Optimal_align of an optimum over its total, in the reading in which it is least."""
    return min(optimal_align(best, each) for each in READINGS) / best.total_latency


def trap(memory: int) -> Instance:
    """Return two long requests that fill the memory, and short ones just too large to swap."""
    # Local swap (Alg. 4) starts with the two of smallest peak and never gets rid of them.
    half = memory // 2
    prompt, output = half // 2, half - half // 2
    shorts = round(2 * math.sqrt(output))
    return Instance([prompt] * 2 + [half] * shorts, [output] * 2 + [1] * shorts, 2 * half)
