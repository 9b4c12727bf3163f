"""Packages that only some commands need: extras of this distribution."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optsched.errors import OptschedError

if TYPE_CHECKING:
    import pandas as pd

#: The extra that brings a package.
EXTRAS = {"distributed": "dask", "ipykernel": "notebooks", "pandas": "pandas", "pyarrow": "parquet"}


def need(package: str, purpose: str) -> Any:
    """Import a package that serves a purpose, or say what to install."""
    try:
        return import_module(package)
    except ImportError as error:
        raise OptschedError(
            f"{purpose} needs {package}, which cannot be imported ({error}); run pip install "
            f"'optsched[{EXTRAS[package]}]'"
        ) from None


def data_frame(data: Any, **options: Any) -> pd.DataFrame:
    """Make a table of pandas."""
    frame: pd.DataFrame = need("pandas", "a table of results").DataFrame(data, **options)
    return frame
