"""Reading and writing one JSON object per file, or as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.files import write_whole
from optsched.errors import unreadable

if TYPE_CHECKING:
    from optsched.errors import OptschedError


def write_object(content: dict[str, Any], path: str | Path | None) -> str:
    """Return an object as JSON text, and write it to a file if there is a path."""
    text = json.dumps(content)
    if path is not None:
        write_whole(path, text + "\n")
    return text


def read_object(
    source: str | Path, error: type[OptschedError], holding: str
) -> tuple[dict[str, Any], str]:
    """Read an object from a file, or from text that starts with a brace."""
    inline = isinstance(source, str) and source.lstrip().startswith("{")
    where = "the JSON text" if inline else str(source)
    try:
        text = str(source) if inline else Path(source).read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as reason:
        raise error(unreadable(where, reason)) from None
    except (ValueError, RecursionError) as reason:  # numbers or nesting beyond Python's limits, too
        raise error(f"{where} is not valid JSON: {reason}; correct it, or write it anew") from None
    if not isinstance(content, dict):
        raise error(f"{where} holds no JSON object with {holding}")
    return content, where
