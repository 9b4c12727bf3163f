"""Schedules and certificates out of few bytes: differences of whole numbers, byte by byte."""

from __future__ import annotations

import json
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.certificates.prices import read_certificate

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.certificates.prices import AnyCertificate

#: The certificate as JSON without its long lists, and how the names of these begin.
PROOF = "proof"


def unpack(content: bytes) -> tuple[dict[str, IntArray], AnyCertificate]:
    """Return the lists of whole numbers and the certificate that an .npz file holds."""
    with np.load(BytesIO(content)) as archive:
        files: dict[str, npt.NDArray[np.uint8]] = dict(archive)
    proof: dict[str, Any] = json.loads(files.pop(PROOF).tobytes())
    numbers: dict[str, IntArray] = {}
    for key, planes in files.items():
        name, _, order = key.rpartition(" ")  # how often differences were taken
        numbers[name] = _from_bytes(planes)
        for _ in range(int(order)):
            numbers[name] = np.cumsum(numbers[name])
    for name in [name for name in numbers if name.startswith(PROOF)]:
        key, values = name.removeprefix(PROOF), numbers.pop(name).tolist()
        if (lengths := proof[key]) is not None:  # of a list of lists
            ends = np.cumsum([0, *lengths]).tolist()
            values = [values[begin:end] for begin, end in pairwise(ends)]
        proof[key] = values
    return numbers, read_certificate(json.dumps(proof))


def _from_bytes(planes: npt.NDArray[np.uint8]) -> IntArray:
    """Return numbers of which the lowest bytes come first, and the sign is the lowest bit."""
    every = np.zeros((planes.shape[1], 8), dtype=np.uint8)
    every[:, : len(planes)] = planes.T
    unsigned = every.view("<u8").reshape(-1)
    halves, signs = (unsigned >> np.uint64(1)).astype(np.int64), unsigned & np.uint64(1)
    values: IntArray = halves ^ -signs.astype(np.int64)
    return values
