"""Families of conversations have the lengths that Robust Section 6 and Jaillet Section 7 print."""

from __future__ import annotations

import numpy as np
import pytest

from optsched import family


@pytest.mark.parametrize(
    ("name", "prompts", "outputs"),
    [
        # Mean, median, variance and largest of prompts and outputs; Jaillet prints no variance.
        ("chat", (41, 11, 4_961, 468), (85, 43, 9_702, 883)),
        ("chat-words", (40.62, 11, None, 499), (85.32, 45, None, 599)),
    ],
)
def test_lengths_have_all_moments_that_the_papers_print(name, prompts, outputs):
    drawn = family(name, n=400_000, seed=1)
    assert drawn.memory == 16_492
    for lengths, (mean, median, variance, longest) in (
        (drawn.prompts, prompts),
        (drawn.outputs, outputs),
    ):
        assert lengths.mean() == pytest.approx(mean, rel=0.015)
        assert abs(np.median(lengths) - median) <= 1
        assert variance is None or lengths.var() == pytest.approx(variance, rel=0.015)
        assert lengths.min() == 1
        assert lengths.max() == longest


def test_lengths_are_the_same_for_the_same_seed_whatever_the_rate():
    one, other = family("chat", n=50, seed=3), family("chat", n=50, seed=3, rate=2.0)
    assert one.prompts.tolist() == other.prompts.tolist()
    assert one.outputs.tolist() == other.outputs.tolist()
    assert other.arrivals.max() > 0
