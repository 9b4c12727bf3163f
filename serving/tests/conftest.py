"""A vLLM to look at, in the place of the real one."""

import sys
from pathlib import Path

import fake_vllm
import pytest
from fake_vllm import NAMES

import optsched_serving.plugin as inside


@pytest.fixture
def vllm(monkeypatch):
    """Put a fake vLLM in the place of the real one; return a function that changes it."""

    def put(**options):
        for name, module in fake_vllm.modules(**options).items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in NAMES:
            monkeypatch.delitem(vars(inside), name, raising=False)

    put()
    yield put
    for name in NAMES:
        vars(inside).pop(name, None)


@pytest.fixture
def measured(monkeypatch):
    """The script that measured, and that reports."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import validate_gpu

    return validate_gpu
