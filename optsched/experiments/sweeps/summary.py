"""What a sweep found, in one row per policy and instance: means over the seeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import number
from optsched._internal.student import CONFIDENCE, interval
from optsched.experiments.sweeps.folder import MANIFEST, read_columns
from optsched.experiments.sweeps.run import OK
from optsched.premises import KNOWLEDGE, deployable

if TYPE_CHECKING:
    from pathlib import Path


_WORLD = ("clock", "workers")  # options that make another setting, and not another policy
_LISTED = 3  # settings of which the best is named
Rows = list[dict[str, Any]]
Group = list[tuple[dict[str, Any], Rows]]  # means, and what they are of


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
    settings: dict[str, Group] = {}
    of_policies = {"policy", *options} - {*_WORLD}
    for each, rows in zip(found, groups.values(), strict=True):
        means.append({name: each.get(name) for name in shown} | _means(rows))
        if means[-1]["mean_latency"] is not None:
            world = [f"{name} {each.get(name)}" for name in shown if name not in of_policies]
            settings.setdefault(", ".join(world), []).append((means[-1], rows))
    said = [_best(setting, group, of_policies) for setting, group in settings.items()]
    if (more := len(said) - _LISTED) > 0:
        said[_LISTED:] = [f"... and {more:,} other setting{'s' * (more > 1)}: see the table"]
    return means, said


def _best(setting: str, group: Group, of_policies: set[str]) -> str:
    """Compare the policies of a setting by seed, and say which can be deployed and is the best."""
    group = sorted(group, key=lambda each: float(each[0]["mean_latency"]["mean"]))
    least = {row["seed"]: row["mean_latency"] for row in group[0][1] if row["status"] == OK}
    ranked = []
    for place, (entry, rows) in enumerate(group):
        named = [str(entry[name]) for name in entry if name in of_policies and entry[name]]
        ranked.append((", ".join(named), entry["knows"], entry["mean_latency"]["mean"]))
        pairs = [
            (row["mean_latency"], least.get(row["seed"])) for row in rows if row["status"] == OK
        ]
        paired = [mine - its for mine, its in pairs if its is not None]
        if place and paired:  # intervals that hold together
            confidence = 1 - (1 - CONFIDENCE) / (len(group) - 1)
            entry["difference"] = interval(np.array(paired), confidence).to_dict()
    unit = group[0][1][0].get("unit") or "steps"
    said = " ".join(deployable(ranked, lambda value: f"{number(value)} {unit}"))
    return f"{setting}: {said}" if setting else said


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
