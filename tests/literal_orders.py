"""Slow, literal twins of the admission rules and of the selections of batches."""

from fractions import Fraction

import numpy as np
from literal import fits
from scipy.optimize import linprog


def waiting_at(step, starts, instance):
    """Return the requests that have arrived and not started."""
    arrivals = instance.arrivals.tolist()
    return [i for i, start in enumerate(starts) if start is None and arrivals[i] <= step]


def simulate_skip(instance, order):
    """At each step try all waiting requests in order; `order(waiting, step)` gives it."""
    starts = [None] * len(instance)
    step = 0
    while None in starts:
        for i in order(waiting_at(step, starts, instance), step):
            starts[i] = step
            if not fits(starts, instance):
                starts[i] = None
        step += 1
    return starts


def simulate_backfill(instance, order):
    """At each step plan all waiting requests one after another; start those planned for now."""
    starts = [None] * len(instance)
    step = 0
    while None in starts:
        plan = list(starts)
        for i in order(waiting_at(step, starts, instance), step):
            plan[i] = step
            while not fits(plan, instance):
                plan[i] += 1
        starts = [None if at is None or at > step else at for at in plan]
        step += 1
    return starts


def simulate_window(instance, order, ratio=1.6, length=128):
    """At each step try in order, up to a ratio of the memory-time of the first that does not fit.

    Only the first `length` that wait are looked at.
    """
    rows = zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    areas = [sum(prompt + u for u in range(1, output + 1)) for prompt, output in rows]
    starts = [None] * len(instance)
    step = 0
    while None in starts:
        tried, head, bound = set(), None, 0
        listed = order(waiting_at(step, starts, instance), step)
        while waiting := [i for i in listed if starts[i] is None]:
            if waiting[0] != head:
                head = waiting[0]
                bound = ratio * areas[head]
            able = [i for i in waiting[:length] if areas[i] <= bound and i not in tried]
            if not able:
                break
            tried.add(able[0])
            starts[able[0]] = step
            if not fits(starts, instance):
                starts[able[0]] = None
        step += 1
    return starts


class Batches:
    """All batches of waiting requests in turn, chosen again whenever one arrives."""

    def __init__(self, instance, select):
        self.arrivals = set(instance.arrivals.tolist())
        self.select = select
        self.order = []
        self.chosen_at = None

    def __call__(self, waiting, step):
        if step in self.arrivals and step != self.chosen_at:
            self.order, left, self.chosen_at = [], list(waiting), step
            while left:
                batch = self.select(left)
                self.order += batch
                left = [i for i in left if i not in batch]
        return [i for i in self.order if i in waiting]


def by_output(instance, batch):
    """Return a batch in the order of Algorithm 1 line 5; equals by (peak, index), or as given."""
    outputs = instance.outputs.tolist()
    return sorted(batch, key=lambda i: outputs[i])


def exact_selection(instance):
    """Algorithm 2 with its paths, where w stands for at most w tokens; F first, then size."""
    peaks, outputs = instance.peaks.tolist(), instance.outputs.tolist()

    def select(waiting):
        best = {(0, w): (0, []) for w in range(instance.memory + 1)}
        for i in waiting:
            for k in range(len(waiting), 0, -1):
                for w in range(instance.memory, peaks[i] - 1, -1):
                    if (k - 1, w - peaks[i]) not in best:
                        continue
                    total, members = best[k - 1, w - peaks[i]]
                    if (k, w) not in best or total + outputs[i] < best[k, w][0]:
                        best[k, w] = (total + outputs[i], [*members, i])
        final = [(k, *found) for (k, w), found in best.items() if k and w == instance.memory]
        _, _, members = min(final, key=lambda row: (Fraction(row[1], row[0] ** 2), -row[0]))
        return by_output(instance, members)

    return select


def quantile_selection(instance, seed=0):
    """Algorithm 5 as printed; the sample is drawn by numpy."""
    peaks, outputs = instance.peaks.tolist(), instance.outputs.tolist()

    def select(waiting):
        size = max(1, int(0.5 * len(waiting)))
        drawn = np.random.default_rng(seed).choice(len(waiting), size, replace=False)
        sample = [waiting[place] for place in drawn]
        most_peak = np.quantile([peaks[i] for i in sample], 0.3)
        most_output = np.quantile([outputs[i] for i in sample], 0.3)
        batch, memory = [], 0
        for i in by_output(instance, waiting):
            if (
                peaks[i] <= most_peak
                and outputs[i] <= most_output
                and memory + peaks[i] <= instance.memory
            ):
                batch.append(i)
                memory += peaks[i]
        remaining = [i for i in waiting if i not in batch]
        for i in sorted(remaining, key=lambda i: outputs[i] / peaks[i]):
            if memory + peaks[i] <= instance.memory:
                batch.append(i)
                memory += peaks[i]
        return by_output(instance, sorted(batch))

    return select


def local_swap(instance, batch, waiting):
    """Algorithm 4 lines 9 to 32, both sets walked by ascending (peak, index)."""
    peaks, outputs = instance.peaks.tolist(), instance.outputs.tolist()

    def ordered(requests):
        return sorted(requests, key=lambda i: (peaks[i], i))

    batch = list(batch)
    improved = True
    while improved:
        improved = False
        memory = sum(peaks[i] for i in batch)
        current = Fraction(sum(outputs[i] for i in batch), len(batch) ** 2)
        for out in ordered(batch):
            for new in ordered(set(waiting) - set(batch)):
                if memory + peaks[new] - peaks[out] > instance.memory:
                    continue
                swapped = [i for i in batch if i != out] + [new]
                if Fraction(sum(outputs[i] for i in swapped), len(batch) ** 2) < current:
                    batch, improved = swapped, True
                    break
            if improved:
                break
    return by_output(instance, ordered(batch))


def lp_swap_selection(instance, expected):
    """Algorithm 7 lines 7 to 17; `expected(waiting)` gives the expected starts y."""
    peaks = instance.peaks.tolist()

    def select(waiting):
        y = expected(waiting)
        batch, memory = [], 0
        for i in sorted(waiting, key=lambda i: (y[i], i)):
            if memory + peaks[i] <= instance.memory:
                batch.append(i)
                memory += peaks[i]
        return local_swap(instance, batch, waiting)

    return select


def relaxed_optimum(instance, horizon):
    """Relax-LP (Sorted-F Eq. 8 to 11) written row by row, solved by scipy."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    columns = [(i, k) for i in range(len(prompts)) for k in range(horizon - outputs[i] + 1)]
    usage = [
        [prompts[i] + t - k if k < t <= k + outputs[i] else 0 for i, k in columns]
        for t in range(1, horizon + 1)
    ]
    once = [[1 if j == i else 0 for j, _ in columns] for i in range(len(prompts))]
    solved = linprog(
        [k + outputs[i] for i, k in columns],
        A_ub=usage,
        b_ub=[instance.memory] * horizon,
        A_eq=once,
        b_eq=[1] * len(prompts),
    )
    return solved.fun
