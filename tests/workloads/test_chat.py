"""The family of short conversations has the lengths that Jaillet Section 7 prints."""

from __future__ import annotations

import numpy as np
import pytest

from optsched import family


def test_lengths_have_the_means_and_medians_of_the_paper():
    drawn = family("chat", n=400_000, seed=1)
    assert drawn.memory == 16_492
    assert drawn.prompts.mean() == pytest.approx(40.62, rel=0.01)
    assert drawn.outputs.mean() == pytest.approx(85.32, rel=0.01)
    assert abs(np.median(drawn.prompts) - 11) <= 1
    assert abs(np.median(drawn.outputs) - 45) <= 1
    for lengths, longest in ((drawn.prompts, 499), (drawn.outputs, 599)):
        assert lengths.min() == 1
        assert lengths.max() == longest


def test_lengths_are_the_same_for_the_same_seed_whatever_the_rate():
    one, other = family("chat", n=50, seed=3), family("chat", n=50, seed=3, rate=2.0)
    assert one.prompts.tolist() == other.prompts.tolist()
    assert one.outputs.tolist() == other.outputs.tolist()
    assert other.arrivals.max() > 0
