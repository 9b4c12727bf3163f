"""Packages that only some commands need."""

import sys
import tomllib
from pathlib import Path

import pytest

from optsched import OptschedError, sweep
from optsched._internal.imports import EXTRAS, data_frame, need

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch, tmp_path):
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptschedError, match=r"results needs pandas, .*'optsched\[pandas\]'$"):
        data_frame({})
    config = {"instances": [{"family": "uniform", "n": 3}], "policies": [{"name": "area"}]}
    with pytest.raises(OptschedError, match=r"needs pyarrow, .* pip install 'optsched\[parquet\]'"):
        sweep(config, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptschedError, match=r"executor dask needs distributed, .*optsched\[dask\]"):
        sweep(config, tmp_path / "out", "dask", "tcp://127.0.0.1:1")


def test_the_extras_are_those_of_the_distribution():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in extras[extra])
        assert need(package, "this test").__name__ == package
