"""Tables of cases, in a TOML file beside the tests that try them."""

import inspect
import tomllib
from pathlib import Path

import pytest


def tables(path):
    """Return the tables beside a module of tests, whose file is `path`."""
    return tomllib.loads(Path(path).with_suffix(".toml").read_text(encoding="utf-8"))


def tabled(test):
    """Try a test on each row of the table of its name; the first row names its arguments."""
    names, *rows = tables(inspect.getsourcefile(inspect.unwrap(test)))[test.__name__]
    return pytest.mark.parametrize(names, rows)(test)
