"""Task I, as a stranger: what objects show, that they can be copied, and that they have types."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

import optsched
from optsched import HindsightProgram, Instance, LinearModel, Schedule, Solution
from optsched.models import EventProgram, LatencyRelaxation

if TYPE_CHECKING:
    import pandas as pd

NAME = "<b>x & y</b>"


@pytest.fixture(scope="module")
def objects() -> list[object]:
    """Return one of each, with a name that is no markup."""
    instance: Instance = Instance([4, 1], [2, 3], memory=9, name=NAME, labels=["<i>", "b"])
    served = optsched.run(instance, "area")
    schedule: Schedule = served.schedule
    program: HindsightProgram = HindsightProgram(instance).within(served)
    model: LinearModel = program.to_linear().with_columns("own", {"once": 0}, upper=1)
    found: Solution = optsched.solve(program)
    answer: optsched.Optimum = optsched.solve(instance, time_limit=1)
    events = EventProgram(instance)
    return [
        *(instance, schedule, program, model, found, answer, events),
        LatencyRelaxation(instance, horizon=6),
        optsched.bound(instance),
    ]


def test_each_can_be_pickled_and_copied(objects: list[object]) -> None:
    for kept in objects:
        for twin in (pickle.loads(pickle.dumps(kept)), copy.copy(kept), copy.deepcopy(kept)):
            assert repr(twin) == repr(kept)
            assert str(twin) == str(kept)
        assert "\n" not in repr(kept)


def test_notebooks_show_tables_without_markup_of_the_users(objects: list[object]) -> None:
    *shown, _ = objects
    for each in shown:
        text = getattr(each, "_repr_html_")()  # noqa: B009
        assert "<b>x" not in text
        assert "<i>" not in text
    instance, schedule, program, model, found, answer, events, _ = map(_html, shown)
    assert "&lt;b&gt;x &amp; y" in instance
    assert ">memory</td>" in schedule
    assert ">horizon</td>" in program
    assert ">start[request,step]</td>" in model
    assert ">objective</td>" in found
    assert "proven optimal" in answer
    assert "by events" in events


def _html(each: object) -> str:
    text: str = getattr(each, "_repr_html_")()  # noqa: B009
    return text


def test_tables_of_pandas_lead_back() -> None:
    instance = Instance([4, 1], [2, 3], 9, [0, 2], weights=[1, 2.5], labels=["a", "b"])
    frame: pd.DataFrame = instance.to_pandas()
    assert list(frame) == ["label", "prompt_tokens", "output_tokens", "arrival", "weight"]
    assert Instance.from_pandas(frame, memory=9) == instance
    kept = frame[frame["output_tokens"] > 2]
    assert len(Instance.from_pandas(kept, memory=9, name="long")) == 1


@pytest.mark.long
def test_this_script_has_strict_types() -> None:
    from mypy import api

    said, errors, code = api.run(["--strict", "--no-error-summary", __file__])
    assert code == 0, said + errors
