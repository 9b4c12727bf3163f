"""Two types of requests served one type after the other, as the proofs of Sorted-F add it up."""

import numpy as np

from optsched.errors import InstanceError


def opposite_orders(instance):
    r"""Total latency of two types of requests, in full batches that follow one another."""
    pairs = np.stack([instance.prompts, instance.outputs], axis=1)
    types, at, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    if len(types) != 2:
        raise InstanceError(f"the instance has {len(types)} types of requests, but 2 are needed")
    order = np.argsort(at)
    rows = [(*types[k].tolist(), int(counts[k])) for k in order]
    return _in_batches(rows, instance.memory), _in_batches(rows[::-1], instance.memory)


def _in_batches(rows, memory):
    begin = total = 0
    for prompt, output, count in rows:
        size = memory // (prompt + output)
        full, rest = divmod(count, size)
        total += begin * count + output * (size * full * (full + 1) // 2 + rest * (full + 1))
        begin += output * (full + (rest > 0))
    return total
