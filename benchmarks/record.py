"""A net under a refactoring: record what the command line answers, and compare it bit for bit.

    python benchmarks/record.py before.json              # with the code before the change
    python benchmarks/record.py after.json before.json   # with the code after it

Some 530 command lines on 210 instances and seeds: schedules of all policies, bounds with their
certificates, intervals, clocks, clusters, exported models, selections, thresholds, regret and quick
reproductions. Times are left out; of an optimum, its value and whether it is proven. All else must
be equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path

from optsched import cli

TIMES = {"seconds", "run_seconds", "history"}
STEPS = "fcfs,mc-sf,mc-sf-total,sorted-f,area,area+skip,area+backfill,mc-sf+backfill"
STEPS += ",sorted-f-quantile,alpha-greedy,alpha-beta-clearing"
FORECASTS = "a-max,a-min,a-l,a-random,area-lower,area-posterior,h-sf"
SECONDS = "fcfs,mc-sf,sorted-f,area,mixed,vllm,vllm-v0,sarathi,alpha-beta-clearing"
ROUTERS = "fcfs,jsq,round-robin,power-of-d,lpt,bf-io"
FAMILIES = ("uniform", "normal", "binomial", "exponential", "mixed", "chat-and-summaries")
KNOWN = ("common:1,1000", "relative:0.5", "classes:50")
CLOCKS = ("llama-2-70b-2xa100", "llama-2-7b-a100", "affine:0.01,0.000002")
TYPES = "d0 = 0.05\nd1 = 0.0000027\n"
TYPES += "[[type]]\nprompt = 100\noutput = 200\nrate = 2.0\n"
TYPES += "[[type]]\nprompt = {}\noutput = 500\nrate = 1.0\n"


def commands(folder):
    """Yield command lines, each with the file, the folder or the part of its answer that counts."""
    for family in FAMILIES:
        for seed in range(12):
            source = f"family:{family},n={(6, 30, 120, 400)[seed % 4]},seed={seed}"
            plans = f"{folder}/plans-{family}-{seed}"
            yield ("compare", source, "--policies", STEPS, "--schedules", plans), plans
            proof = f"{folder}/proof-{family}-{seed}.json"
            yield ("bound", source, "--certificate", proof), proof
            known = ("--intervals", KNOWN[seed % 3])
            yield ("compare", source, "--policies", FORECASTS, *known), None
            yield ("check", source, f"{plans}/area.json"), None
        for seed in range(6):
            size, rate = (40, 200, 300)[seed % 3], (1, 3, 20)[seed % 3]
            source = f"family:{family},n={size},seed={seed},rate={rate}"
            clock = ("--clock", CLOCKS[seed % 3])
            yield ("compare", source, "--policies", SECONDS, *clock), None
            log = f"{folder}/log-{family}-{seed}.csv"
            policy = (("area",), ("a-min", "--intervals", "relative:0.5"), ("vllm",))[seed % 3]
            yield ("simulate", source, "--policy", *policy, *clock, "--log", log), log
    for family in ("uniform", "exponential"):
        for seed in range(8):
            yield ("solve", f"family:{family},n={4 + seed % 3},seed={seed}"), "optimum"
            program = f"{folder}/program-{family}-{seed}.{('mps', 'lp')[seed % 2]}"
            model = ("--model", ("hindsight", "relaxation")[seed % 2])
            source = f"family:{family},n={3 + seed},seed={seed}"
            yield ("export", source, "--out", program, *model), program
            several = ("--workers", ("2", "150,100x2", "3")[seed % 3])
            source = f"family:{family},n={4 + seed},seed={seed}"
            proof = f"{folder}/shared-{family}-{seed}.json"
            yield ("bound", source, *several, "--certificate", proof), proof
            program = f"{folder}/shared-{family}-{seed}.{('mps', 'lp')[seed % 2]}"
            yield ("export", source, *several, "--out", program), program
            yield ("solve", source, *several), "optimum"
            for method in ("dp", "scaled-dp", "swap", "quantile", "mip"):
                source = f"family:{family},n={6 + seed},seed={seed}"
                yield ("select", source, "--method", method), None
    for seed in range(6):
        route = ("--workers", "4", "--slots", "8", "--policies", ROUTERS, "--steps", "200")
        lookahead = ("--lookahead", ("0", "8", "adaptive")[seed % 3])
        yield ("cluster", f"family:lognormal,n=400,seed={seed}", *route, *lookahead), None
    for name, prompt, options in (("wait", 300, ()), ("nested", 100, ("--nested",))):
        types = Path(folder, f"{name}.toml")
        types.write_text(TYPES.format(prompt))
        yield ("thresholds", str(types), *options), None
    yield ("regret", "family:equal-prompts", "--horizons", "100,300", "--seeds", "2"), None
    for target in ("sorted-f-example-1", "robust-fig-1", "jaillet-theorem-4-2", "bf-io-table-1"):
        yield ("reproduce", target, "--quick", "--out", f"{folder}/targets"), "rows"


def answer(line):
    """Run a command line in this process and return its exit code and its JSON without times."""
    printed, sys.argv, code = io.StringIO(), ["optsched", *line, "--json", "-"], None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return code, timeless(json.loads(printed.getvalue() or "null"))


def timeless(value):
    """Return plain data without what depends on the machine's speed."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def digest(path):
    """Return a digest of a file, or of the start steps of each schedule in a folder."""
    if path.is_dir():
        return {file.name: json.loads(file.read_text())["starts"] for file in path.iterdir()}
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record():
    """Return the answers of all command lines."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for line, counts in commands(folder):
            code, content = answer(line)
            if counts == "optimum":
                content = [content["objective"], content["proven_optimal"]]
            elif counts == "rows":
                content = content["rows"]
            elif counts is not None and Path(counts).exists():  # a refused line writes nothing
                content = [content, digest(Path(counts))]
            name = " ".join(line).replace(folder, "FOLDER")
            found[name] = [code, json.loads(json.dumps(content).replace(folder, "FOLDER"))]
    return found


if __name__ == "__main__":
    out, *earlier = map(Path, sys.argv[1:])
    now = record()
    out.write_text(json.dumps(now, sort_keys=True))
    for path in earlier:
        before = json.loads(path.read_text())
        changed = [name for name in before if before[name] != now.get(name)]
        print(f"{len(before)} were recorded before, {len(changed)} differ now")
        print("\n".join(changed))
        sys.exit(bool(changed))
