"""Slow, literal twins of the admission rules and of the selections of batches."""

from __future__ import annotations

from literal import fits


def waiting_at(step, starts, instance):
    """Give the requests that have arrived and not started."""
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


class Batches:
    """All batches of those waiting, one after another, chosen anew whenever somebody arrives."""

    def __init__(self, instance, select):
        self.arrivals = set(instance.arrivals.tolist())
        self.select = select
        self.order = []

    def __call__(self, waiting, step):
        if step in self.arrivals:
            self.order, left = [], list(waiting)
            while left:
                batch = self.select(left)
                self.order += batch
                left = [i for i in left if i not in batch]
        return [i for i in self.order if i in waiting]
