"""Instances that tests of clusters share."""

import numpy as np

from optsched import Instance


def with_deadlines(rng, n=30, *, timed=False):
    """Requests of three tenants with deadlines, some of which nobody can keep."""
    outputs = rng.integers(1, 8, n)
    arrivals = np.sort(rng.integers(0, 12, n))
    owners = rng.integers(0, 3, n)
    return Instance(
        rng.integers(0, 40, n),
        outputs,
        10**6,
        arrivals=arrivals,
        deadlines=arrivals + outputs + rng.integers(0, 12, n),
        labels=[f"{'abc'[owner]}/{number}" for number, owner in enumerate(owners)],
        weights=1.0 + owners,
        seconds_per_step=1.0 if timed else None,
    )
