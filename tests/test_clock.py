"""Clocks against the formulas they stand for, and what they refuse."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import get_clock
from optsched.clock import BatchContent, FunctionClock, LinearClock, affine
from optsched.errors import ClockError

counts = st.integers(0, 10**6)
contents = st.builds(BatchContent, counts, counts, counts, counts, counts)


def eq_1(d0, d1, prefills, decodes):
    """Fluid Eq. (1), literally: prompts l, and decoding requests (l, k) at their k-th token."""
    return d0 + d1 * (sum(prefills) + sum(prompt + made for prompt, made in decodes))


@given(
    st.lists(st.integers(1, 500), min_size=1),
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500))),
)
def test_affine_is_fluid_equation_1(prefills, decodes):
    batch = BatchContent(
        prefill_tokens=sum(prefills),
        decode_requests=len(decodes),
        resident_tokens=sum(prompt + made - 1 for prompt, made in decodes),
        squared_prompts=sum(prompt**2 for prompt in prefills),
        held_tokens=sum(prefills) + sum(prompt + made for prompt, made in decodes),
    )
    expected = eq_1(0.0085, 2.7e-7, prefills, decodes)
    assert math.isclose(get_clock("affine:0.0085,2.7e-7")(batch), expected)
    assert math.isclose(affine(0.0085, 2.7e-7)(batch), expected)


@given(contents)
def test_a_clock_is_its_coefficient_vector(batch):
    for name in ("unit", "affine:0.5,0.25", "llama-2-70b-2xa100", "llama-2-7b-a100"):
        clock = get_clock(name)
        assert math.isclose(clock(batch), clock.coefficients @ np.array([1, *batch]))
    assert get_clock("unit")(batch) == 1


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama-2-70b-2xa100", "llama-2-70b_2xA100-80GB_TP2"),
        ("llama-2-7b-a100", "llama-2-7b_1xA100-80GB_TP1"),
    ],
)
def test_profiled_coefficients_are_the_recommended_fits(shared_data, name, model):
    entry = json.loads((shared_data / "batch_time.json").read_text())["models"][model]
    fit = entry[entry["recommended"]]
    expected = [fit[f"c{index}"] for index in range(5)] + [0]
    assert get_clock(name).coefficients.tolist() == expected


def test_a_function_is_a_clock():
    def mine(batch):
        return 0.5 + batch.decode_requests

    clock = get_clock(mine)
    assert (clock.name, clock.coefficients) == ("mine", None)
    assert clock(BatchContent(0, 2, 9, 0, 11)) == 2.5
    assert get_clock(clock) is clock
    assert str(clock) == "mine: a function of the batch, s"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("afine:1,2", r"unknown clock 'afine:1,2': did you mean 'affine:D0,D1'\? Known: affine:D0"),
        ("llama-2-70b", r"Known: affine:D0,D1, llama-2-70b-2xa100, llama-2-7b-a100, unit"),
        ("unit:3", "unknown clock 'unit:3'"),
        ("affine:1", "write affine:D0,D1 with two numbers"),
        ("affine", "write affine:D0,D1 with two numbers"),
        ("affine:a,b", "write affine:D0,D1 with two numbers"),
        ("affine:-1,2", "coefficient constant is -1.0, but must be a number from 0 to 1e"),
        ("affine:1e308,2", r"constant is 1e\+308, but must be a number from 0 to 1e\+12, so"),
        ("affine:nan,2", "coefficient constant is nan"),
        ("affine:1,inf", "coefficient held_tokens is inf"),
        ("affine:0,0", "a batch that only prefills would take no time"),
        (3, "3 is not a clock"),
    ],
)
def test_what_is_no_clock_is_refused_in_one_sentence(bad, message):
    with pytest.raises(ClockError, match=message):
        get_clock(bad)


def test_no_batch_takes_zero_or_negative_time():
    with pytest.raises(ClockError, match="a batch that only decodes would take no time"):
        LinearClock("prefill only", prefill_tokens=1)
    LinearClock("no overhead", prefill_tokens=1, decode_requests=1)
    empty_prompt = BatchContent(0, 0, 0, 0, 1)
    with pytest.raises(ClockError, match=r"takes 0.0 s, but must take a finite time above 0"):
        LinearClock("no overhead", prefill_tokens=1, decode_requests=1)(empty_prompt)
    for time in (0, -1.0, math.nan, math.inf, None, "long"):
        with pytest.raises(ClockError, match="clock odd: a batch with 0 prefill_tokens, "):
            FunctionClock(lambda _, time=time: time, "odd")(empty_prompt)
