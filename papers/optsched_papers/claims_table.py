"""The claims of a reproduction as a table."""

from __future__ import annotations

from typing import Any

from optsched._internal.numbers import proven
from optsched.report.tables import Row, Table


def claims_table(result: dict[str, Any]) -> Table:
    """Return the claims of a reproduction, from its JSON: the paper's value, ours, the verdict."""
    rows = []
    for row in result["rows"]:
        ends = ""
        if row["low"] is not None:
            ends = f"{proven(row['low'], digits=5)} to {proven(row['high'], up=True, digits=5)}"
        numbers = ("" if row[key] is None else f"{row[key]:,.5g}" for key in ("paper", "ours"))
        reason = row["verdict"].replace(f": {row['label']} is", ": is")
        reason = reason if row["counts"] else f"beside: {reason}"
        rows.append(Row(row["label"], [(None, text) for text in (*numbers, ends, reason)]))
    titles = ("claim", "paper", "ours", "interval", "verdict")
    return Table(titles, rows, width=150, words=(0, 4))
