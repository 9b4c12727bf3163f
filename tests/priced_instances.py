"""Random instances with any prices and sizes for the configuration-size bound."""

import numpy as np
from hypothesis import strategies as st
from strategies import instances

from optsched import Schedule
from optsched.certificates.prices import ConfigurationCertificate, items

#: Limits within which brute force is fast.
TINY = {"max_requests": 4, "max_memory": 12, "max_arrival": 5, "max_output": 4}


@st.composite
def certificates(draw, **limits):
    """Draw an instance and any prices, phases and sizes for it."""
    instance = draw(instances(**limits))
    prices = draw(st.lists(st.integers(0, 20), min_size=1, max_size=15))
    ends = draw(st.sets(st.integers(1, len(prices)), max_size=3)) | {len(prices)}
    count = len(items(instance))
    row = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    return instance, ConfigurationCertificate(
        draw(st.integers(1, 8)),
        draw(st.integers(1, 8)),
        tuple(prices),
        tuple(sorted(ends)),
        tuple(tuple(draw(row)) for _ in ends),
        instance.fingerprint,
    )


def loose_certificate(instance, rng):
    """Draw any prices, phases and sizes; at times none."""
    horizon = int(rng.integers(0, 15))
    ends = sorted({*rng.integers(1, horizon + 1, 3).tolist(), horizon}) if horizon else []
    count = len(items(instance))
    return ConfigurationCertificate(
        int(rng.integers(1, 9)),
        int(rng.integers(1, 9)),
        tuple(rng.integers(0, 21, horizon).tolist()),
        tuple(ends),
        tuple(tuple(rng.integers(0, 10, count).tolist()) for _ in ends),
        instance.fingerprint,
    )


def one_by_one(instance, rng):
    """Run the requests in a random order after the last arrival, with a pause after each."""
    step, starts = int(instance.arrivals[-1]), np.zeros(len(instance), dtype=np.int64)
    for i in rng.permutation(len(instance)):
        starts[i] = step
        step += int(instance.outputs[i]) + 1
    return Schedule(instance, starts)
