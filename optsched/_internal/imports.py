"""Packages that an extra brings, and modules of the user's, imported by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from optsched.errors import OptschedError, PolicyError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def data_frame(data: object, **options: object) -> pd.DataFrame:
    """Make a table of pandas."""
    frame: pd.DataFrame = need("pandas", "a table of results").DataFrame(data, **options)
    return frame


def names_module(text: str, known: Iterable[str]) -> bool:
    """Say whether a text is "module:name", and not a known name with parameters."""
    module, colon, name = text.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and name.isidentifier() and module not in known


def imported(text: str, what: str, known: Iterable[str]) -> Any:
    """Return what a module of the user's has under a name, both written as "module:name"."""
    module, _, name = text.partition(":")
    try:
        found = import_module(module)
    except Exception as error:  # code of the user's raises anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            close = get_close_matches(module, known, n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            reason = (
                f"unknown {what} {text!r}: there is no module {error.name!r}{guess}: if it is "
                "yours, add its folder to PYTHONPATH"
            )
        else:
            reason = f"{what} {text!r}: module {module!r} fails when it is imported: {reason}"
        raise PolicyError(reason) from error
    if not hasattr(found, name):
        own = [each for each in vars(found) if not each.startswith("_")]
        raise PolicyError(f"module {module!r} has no {what} {name!r}: {nearest(name, own)}")
    return getattr(found, name)
