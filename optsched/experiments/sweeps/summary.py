"""What a sweep found, in one row per policy and instance: means over the seeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import number
from optsched._internal.student import CONFIDENCE, interval
from optsched.experiments.sweeps.folder import MANIFEST, read_columns
from optsched.experiments.sweeps.run import OK
from optsched.problem.premises import KNOWLEDGE, deployable

if TYPE_CHECKING:
    from pathlib import Path


_WORLD = ("clock", "workers")  # options that make another setting, and not another policy
_LISTED = 3  # settings of which the best is named
Rows = list[dict[str, Any]]
Group = list[tuple[dict[str, Any], dict[int, float]]]  # means, and mean latencies by seed


def summarised(path: Path) -> tuple[Rows, list[str]]:
    """Return means with what differs between the rows, and the best of each setting in words."""
    tables = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["config"]["policies"]
    options = dict.fromkeys(key for each in tables for key in each if key not in ("name", "rule"))
    values = ("seed", "status", "knows", "mean_latency", "unit", "gap")
    groups: dict[str, Rows] = {}
    for row in read_columns(path, ["source", "policy", *options, *values]):
        what = json.loads(row.pop("source")) | {name: row.pop(name, None) for name in options}
        groups.setdefault(json.dumps(what | {"policy": row.pop("policy")}), []).append(row)
    found = [json.loads(each) for each in groups]
    names = dict.fromkeys(name for each in found for name in each)
    differ = [name for name in names if len({str(each.get(name)) for each in found}) > 1]
    shown = ["policy", *(name for name in differ if name != "policy")]
    means: Rows = []
    settings: dict[tuple[str, str], Group] = {}
    ours = {"policy", *options} - {*_WORLD}
    for each, rows in zip(found, groups.values(), strict=True):
        means.append({name: each.get(name) for name in shown} | _means(rows))
        if means[-1]["mean_latency"] is not None:
            world = ", ".join(f"{name} {each.get(name)}" for name in shown if name not in ours)
            of_seed = {row["seed"]: row["mean_latency"] for row in rows if row["status"] == OK}
            unit = rows[0].get("unit") or "steps"
            settings.setdefault((world, unit), []).append((means[-1], of_seed))
    said = [_best(*setting, group, ours) for setting, group in settings.items()]
    if (more := len(said) - _LISTED) > 0:
        said[_LISTED:] = [f"... and {more:,} other setting{'s' * (more > 1)}: see the table"]
    return means, said


def _best(world: str, unit: str, group: Group, ours: set[str]) -> str:
    """Compare the policies of a setting by seed, and say which can be deployed and is the best."""
    (first, least), *others = sorted(group, key=lambda each: float(each[0]["mean_latency"]["mean"]))
    for entry, of_seed in others:
        paired = [mean - least[seed] for seed, mean in of_seed.items() if seed in least]
        if paired:  # intervals that hold together
            confidence = 1 - (1 - CONFIDENCE) / len(others)
            entry["difference"] = interval(np.array(paired), confidence).to_dict()
    ranked = [
        (
            ", ".join(str(entry[name]) for name in entry if name in ours and entry[name]),
            entry["knows"],
            entry["mean_latency"]["mean"],
        )
        for entry in (first, *(entry for entry, _ in others))
    ]
    said = " ".join(deployable(ranked, lambda value: f"{number(value)} {unit}"))
    return f"{world}: {said}" if world else said


def _means(rows: Rows) -> dict[str, Any]:
    done = [row for row in rows if row["status"] == OK]
    told = {row["knows"] for row in done if row.get("knows")}
    latency, gap = ([row.get(name) for row in done] for name in ("mean_latency", "gap"))
    known = bool(done) and None not in latency
    proven = bool(done) and None not in gap
    return {
        "knows": min(told, key=KNOWLEDGE.index, default=None),
        "runs": len(rows),
        "failed": len(rows) - len(done),
        "mean_latency": interval(np.array(latency)).to_dict() if known else None,
        "difference": None,  # to the least mean of the setting, paired by seed
        "gap": float(np.array(gap).mean()) if proven else None,
    }
