"""Fluid Fig. 3, 9, 10 and 15: batches are what they say, and what the lengths agree with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick

from optsched_papers.distributions import CONVERSATION, CONVERSATIONS
from optsched_papers.fluid import measured
from optsched_papers.fluid.memory import BINS


def claims_of(name):
    return {claim.label: claim for claim in quick(name).claims}


@pytest.mark.parametrize("kind", measured.KINDS)
def test_a_batch_is_of_its_kind_and_of_its_size(kind):
    rng = np.random.default_rng(0)
    for tokens in (1000, 5000):
        batch = measured.batch_of(tokens, kind, rng)
        assert tokens <= batch.held_tokens < tokens + 2000
        made = batch.decode_requests  # a token each; a prefill makes none in (1)
        assert batch.prefill_tokens + batch.resident_tokens + made == batch.held_tokens
        assert (batch.prefill_tokens > 0) == (kind == "prefills" or batch.squared_prompts > 0)
        assert (batch.decode_requests == 0) == (kind == "prefills")
        if kind == "decodes":
            assert batch.prefill_tokens == batch.squared_prompts == 0


def test_the_fit_recovers_a_line():
    held = np.array([100, 200, 400, 900])
    assert measured.line(held, 7 + 0.03 * held) == pytest.approx((7, 0.03, 1))


@pytest.mark.slow
def test_prefills_and_decodes_lie_on_lines_of_their_own():
    assert quick("fluid-fig-3").verdict.label == "in shape"
    claims = claims_of("fluid-fig-3")
    assert claims["R^2, prefills"].ours > 0.999
    assert claims["R^2, decodes"].ours > 0.95 > 0.6 > claims["R^2, both"].ours
    assert claims["d1 of prefills over d1 of decodes"].ours > 40


@pytest.mark.slow
def test_the_thresholds_follow_from_the_rates_and_the_lengths_do_not_from_the_family():
    claims = claims_of("fluid-fig-10")
    assert claims["thresholds that are sums of the rates from their bin on"].holds
    assert not claims["mean prefill, single answers"].holds
    assert claims["mean prefill, whole conversations"].holds
    assert not claims["share of the first bin, single answers"].holds
    for name, label in (("fluid-fig-9", "in shape"), ("fluid-fig-15", "in shape")):
        assert quick(name).verdict.label == label


@pytest.mark.slow
def test_figure_9_has_three_panels():
    figure = drawn(quick("fluid-fig-9"))
    assert len(figure.axes) == 3
    pyplot.close(figure)


def test_words_of_whole_conversations_agree_with_the_printed_bins(shared_data):
    frame = pd.read_csv(shared_data / "lmsys_chat.csv.gz")
    tens = np.bincount((frame["output_tokens"] - 1) // 10)
    assert tens.tolist() == list(CONVERSATIONS)
    assert frame["output_tokens"].mean() == pytest.approx(CONVERSATION)
    frame = frame[frame["output_tokens"] <= 500]
    place = (frame["output_tokens"] - 1) // 50
    assert frame.groupby(place)["prompt_tokens"].mean().round(2).tolist() == list(measured.PROMPTS)
    assert frame["prompt_tokens"].mean() == pytest.approx(60, rel=0.05)
    counts = np.bincount(place)
    shares = counts / counts.sum()
    assert np.rint(sum(BINS) * shares).tolist() == [20, 10, 7, 7, 7, 5, 4, 3, 2, 1]
    assert np.abs(shares - np.array(BINS) / sum(BINS)).sum() / 2 < 0.08


def test_ten_segments_are_best_at_the_frequencies_of_the_family_too():
    types = measured.frequencies(0)
    assert types.rates.sum() == pytest.approx(50)
    assert len(types) == 500
    claims = claims_of("fluid-fig-15")
    assert claims["segments of least memory at rates of single answers"].holds
