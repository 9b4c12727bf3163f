"""Ascent on prices: on functions whose maximum a linear program knows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from optsched._internal.aside import UNLIMITED
from optsched.bounds.ascent import PolyakAscent


class Tent(PolyakAscent):
    """The least of some linear functions of prices."""

    def __init__(self, slopes, heights, ahead):
        self.slopes, self.heights = np.array(slopes, float), np.array(heights, float)
        self._begin([np.zeros(self.slopes.shape[1])])
        self._aim(ahead)

    def _evaluate(self, prices):
        values = self.slopes @ prices + self.heights
        least = int(values.argmin())
        return float(values[least]), self.slopes[least]


def test_the_maximum_of_concave_functions_is_approached_and_never_exceeded():
    shares = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        slopes = np.vstack([rng.integers(-9, 10, (30, 6)), -np.ones(6)])
        heights = rng.integers(0, 50, 31)
        lines = np.hstack([-slopes, np.ones((31, 1))])
        most = -linprog([0] * 6 + [-1], lines, heights, bounds=[(0, None)] * 6 + [(None, None)]).fun
        tent = Tent(slopes, heights, 50.0)
        first = tent.best
        tent.climb(3000, UNLIMITED)
        assert first <= tent.best <= most + 1e-9
        if most > first + 1e-9:
            shares.append((tent.best - first) / (most - first))
    assert len(shares) > 40
    assert np.mean(shares) > 0.95


def test_slopes_that_cancel_out_do_not_end_an_ascent():
    # Nine tenths of the first slope, and the second one, add up to nothing.
    tent = Tent([[10], [-9]], [0, 19], 200.0)
    tent.climb(2000, UNLIMITED)
    assert tent.best == pytest.approx(10, rel=1e-3)
