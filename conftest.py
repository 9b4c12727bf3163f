"""What the tests and the examples in docstrings share."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from numba.core import event

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Untraced(event.Listener):  # type: ignore[misc]
    """Suspend coverage while numba compiles: it would trace the compiler, half as slow again."""

    def __init__(self) -> None:
        self._depth = 0
        self._trace: Any = None

    def on_start(self, event: Any) -> None:
        """Suspend the tracer where the outermost compilation begins."""
        if not self._depth:
            self._trace = sys.gettrace()
            sys.settrace(None)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Set the tracer again where it ends."""
        self._depth -= 1
        if not self._depth:
            sys.settrace(self._trace)


event.register("numba:compile", _Untraced())


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder for cells of the papers' targets, which the tests of this session share."""
    if not hasattr(config, "workerinput"):  # set in the processes that pytest-xdist starts
        folder = tempfile.TemporaryDirectory(prefix="optsched-cells-")
        os.environ["OPTSCHED_TEST_CELLS"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of garbage collections from now on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close what was drawn: matplotlib warns of more than twenty open figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
