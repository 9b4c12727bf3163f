"""Progress in notebooks, where nothing else shows that a call is at work: one bar for all calls."""

from __future__ import annotations

import html
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AFTER, _EVERY = 1.0, 0.2  # seconds to the first look, and between two
_busy = False  # whether a call is watched already: those that it makes are not
_shown: _Bar | None = None


@contextmanager
def watched(on_progress: Callable[..., Any] | None) -> Iterator[Callable[..., Any] | None]:
    """Yield who is told of progress: whom the caller named, or a bar in a notebook, or nobody."""
    global _busy, _shown
    outer, _busy = _busy, True
    bar = None if on_progress is not None or outer or not _in_notebook() else _Bar()
    _shown = bar or _shown
    try:
        yield on_progress if bar is None else bar
    finally:
        _busy = outer
        if bar is not None:
            bar.close()
            _shown = None


class _Still:
    """News without numbers."""

    def __str__(self) -> str:
        return "at work"


def still_at_work() -> None:
    """Let a bar move that has no numbers, as long kernels tell none."""
    if _shown is not None and not _shown.told:
        _shown(_Still())


def _in_notebook() -> bool:
    found: Any = sys.modules.get("IPython")
    return getattr(found and found.get_ipython(), "kernel", None) is not None


class _Bar:
    """A bar that is redrawn in its place, and goes away at the end."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.told = False  # whether there were numbers, which stay until there are others
        self._next = time.monotonic() + _AFTER

    def __call__(self, *news: Any) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + _EVERY
        counts = news if len(news) > 1 else [getattr(news[0], key, 0) for key in ("done", "count")]
        text = str(news[0]) if len(news) == 1 else f"{news[0]:,} of {news[1]:,}"
        self.told = self.told or bool(counts[1])
        share = f' value="{counts[0]}" max="{counts[1]}"' if counts[1] else ""  # else it moves
        self._show(text, f"<progress{share}></progress> {html.escape(text)}")

    def _show(self, text: str, page: str) -> None:
        display: Any = import_module("IPython.display").display
        content = {"text/plain": text, "text/html": page}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._handle is not None:
            self._show("", "")
