"""What a sweep found, in one row per policy and instance: means over the seeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.student import interval
from optsched.experiments.sweeps.folder import MANIFEST, read_columns
from optsched.experiments.sweeps.run import OK

if TYPE_CHECKING:
    from pathlib import Path


def summarised(path: Path) -> list[dict[str, Any]]:
    """Return what differs between the rows, counts of runs, mean latency and mean gap of each."""
    tables = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["config"]["policies"]
    options = dict.fromkeys(key for each in tables for key in each if key not in ("name", "rule"))
    values = ("status", "mean_latency", "gap")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_columns(path, ["source", "policy", *options, *values]):
        what = json.loads(row.pop("source")) | {name: row.pop(name, None) for name in options}
        groups.setdefault(json.dumps(what | {"policy": row.pop("policy")}), []).append(row)
    found = [json.loads(each) for each in groups]
    names = dict.fromkeys(name for each in found for name in each)
    differ = [name for name in names if len({str(each.get(name)) for each in found}) > 1]
    shown = ["policy", *(name for name in differ if name != "policy")]
    return [
        {name: each.get(name) for name in shown} | _means(rows)
        for each, rows in zip(found, groups.values(), strict=True)
    ]


def _means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = [row for row in rows if row["status"] == OK]
    counts = {"runs": len(rows), "failed": len(rows) - len(done)}
    latency, gap = ([row.get(name) for row in done] for name in ("mean_latency", "gap"))
    known = bool(done) and None not in latency
    proven = bool(done) and None not in gap
    return counts | {
        "mean_latency": interval(np.array(latency)).to_dict() if known else None,
        "gap": float(np.array(gap).mean()) if proven else None,
    }
