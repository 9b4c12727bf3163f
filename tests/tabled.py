"""Tables of cases, in a TOML file beside the tests that try them."""

import inspect
import tomllib
from pathlib import Path

import pytest


def tables(path):
    """Return the tables beside a module of tests, whose file is `path`."""
    return tomllib.loads(Path(path).with_suffix(".toml").read_text(encoding="utf-8"))


def tabled(*more):
    """Try a test on the table of its name, whose first row names its arguments, and on more."""

    def tried(test):
        names, *rows = tables(inspect.getsourcefile(inspect.unwrap(test)))[test.__name__]
        return pytest.mark.parametrize(names, [*rows, *more])(test)

    return tried
