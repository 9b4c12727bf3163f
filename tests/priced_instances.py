"""Random instances with any prices and sizes for the configuration-size bound."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import instances

from optsched.certificates.configurations import ConfigurationCertificate, items

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
