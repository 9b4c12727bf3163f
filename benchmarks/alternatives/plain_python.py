"""What a user would write without optsched: admission and batch selection in plain Python."""

from __future__ import annotations


def admit(prompts, outputs, memory, order):
    """Admit in a fixed order, offline, checking the memory at every future completion."""
    starts = [0] * len(order)
    running = []  # (completion, start, prompt)
    clock = position = 0
    while position < len(order):
        running = [request for request in running if request[0] > clock]
        while position < len(order):
            index = order[position]
            prompt, output = prompts[index], outputs[index]
            trial = [*running, (clock + output, clock, prompt)]
            fits = all(
                sum(s + moment - p for c, p, s in trial if c >= moment) <= memory
                for moment in {completion for completion, _, _ in trial}
            )
            if not fits:
                break
            running = trial
            starts[index] = clock
            position += 1
        clock += 1
    return starts


def sorted_f_order(prompts, outputs, memory):
    """Sorted-F phase 1 with the local swap of Algorithm 4, as printed."""
    peak = [s + o for s, o in zip(prompts, outputs, strict=True)]
    left = sorted(range(len(peak)), key=lambda i: (peak[i], i))
    order = []
    while left:
        batch, used = [], 0
        for i in left:
            if used + peak[i] <= memory:
                batch.append(i)
                used += peak[i]
        improved = True
        while improved:
            improved = False
            inside = set(batch)
            rest = [i for i in left if i not in inside]
            for position, out in enumerate(batch):
                for new in rest:
                    if used + peak[new] - peak[out] > memory or outputs[new] >= outputs[out]:
                        continue
                    used += peak[new] - peak[out]
                    batch[position] = new
                    batch.sort(key=lambda i: (peak[i], i))
                    improved = True
                    break
                if improved:
                    break
        order += sorted(batch, key=lambda i: outputs[i])
        chosen = set(batch)
        left = [i for i in left if i not in chosen]
    return order
