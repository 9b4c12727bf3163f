"""The library of instances: find better records, and see whether `solve` got worse at equal work.

Whatever is found is kept only where the independent verifiers confirm it and it is better. Searches
are limited by work, exact methods and bounds on a clock by time. `improve` goes on where it was
stopped; an instance that is done is left out until all are, or until the work or the version is
another. Optima that lack a proof come first, then bounds on a clock, then the gaps near the median.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from timing import cpu_seconds

import optsched
from optsched import SolveParams, bound, run, solve
from optsched._internal.aside import Budget
from optsched._internal.files import write_whole
from optsched._internal.numbers import percent
from optsched.bounds.ascent import improve_charges, improve_prices, sawtooth_bound
from optsched.bounds.bound import OBJECTIVES
from optsched.bounds.configurations import configuration_bound, makespan_by_sizes
from optsched.certificates.prices import Certificate, MakespanCertificate, SawtoothCertificate
from optsched.clock import get_clock
from optsched.errors import OptschedError
from optsched.experiments.records import PROOF, TRACES, Finder, Record, in_batches, library, unpack
from optsched.problem.schedule import Schedule
from optsched.search.exact.search import solve_exact
from optsched.search.exact.states import solve_by_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched import Instance
    from optsched._internal.arrays import IntArray
    from optsched.bounds.ascent import BoundMethod
    from optsched.certificates.prices import AnyCertificate
    from optsched.search.exact.search import ExactResult

ROOT = Path(__file__).parents[1]
TODAY = datetime.now(UTC).date().isoformat()
RECORDS = ROOT / "optsched" / "experiments" / "records"
AT_WORK = ROOT / "benchmarks" / "library.json"
STATE = ROOT / "build" / "library.json"

FILES = {  # of the public traces, in the folder that --data names
    "azure-conversation-2023": ("azure_conv_2023.csv.gz", "AzureLLMInferenceTrace_conv.csv"),
    "azure-code-2023": ("azure_code_2023.csv.gz", "AzureLLMInferenceTrace_code.csv"),
    "arxiv-summarization": (
        *("arxiv_summarization.csv.gz",),
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
    ),
}
LARGE, SIZED = 0.02, 200  # gap from which, and requests up to which, sizes are tried
EXACT, PROVING = 24, 300  # requests up to which exact methods are tried, and most seconds for each
ROOM = 2**33  # bytes that they may take
APART: dict[str, Callable[..., ExactResult]] = {  # all at once; they share nothing
    "running sets": partial(solve_by_states, certificate=None),
    "branch and bound": solve_exact,
}
PRICED = 20_000  # requests up to which prices on a clock are tried: minutes
NEAR = 0.04, 0.08  # gaps that move the median
TWO = "two solvers: "  # how the method begins of a bound without a certificate
KINDS = {
    "Certificate": "prices of memory",
    "ConfigurationCertificate": "sizes and prices",
    "ClockCertificate": "prices on the clock",
    "MakespanCertificate": "sizes",
    "SawtoothCertificate": "prices and growth",
}
WIDTHS = (12, 18, 24)  # bits of denominators that are tried
FINE = 1e-6  # share of a bound that shorter numbers in its certificate may lose
PRICED_WITH = ("prices", "memory_prices", "charges")  # numbers over a denominator
ASCENT = 1e9  # work of an ascent in a second of a slow core, about
POLICIES = (
    *("work", "work+window", "work+window:1.4,64", "work+skip", "area", "area+window"),
    *("mc-sf", "mc-sf-total", "fcfs"),
)
ROUTERS = ("least-work", "least-tokens", "least-kv", "jsq", "round-robin")
MEASURED = 40, 5_000  # requests of the instances on which work is compared
NOISE = 0.02  # share of the median gap by which seeds differ

DATA = click.option(
    "--data", type=click.Path(path_type=Path), envvar="OPTSCHED_DATA", help="Folder of traces."
)
NAMES = click.argument("names", nargs=-1)


@click.group()
def main() -> None:
    """Find better records for the library, or compare what `solve` finds at equal work."""


def chosen(names: tuple[str, ...]) -> list[Record]:
    """Return the records of these names, or all."""
    records = library()
    return [records[name] for name in names] if names else list(records.values())


def urgency(record: Record) -> tuple[bool, bool, bool, int]:
    """Return what sorts instances by how much a little work is likely to gain."""
    least, most = NEAR
    unproven = record.clock is None and record.requests <= EXACT and record.gap > 0
    near = record.requests >= SIZED and least <= record.gap <= most
    return not unproven, record.clock is None, not near, record.requests


def instance_of(record: Record, data: Path | None) -> Instance | None:
    """Make the requests; None where they need a trace that is not there."""
    if record.trace not in TRACES:
        return record.instance()
    for file in FILES[record.trace]:
        if data is not None and (data / file).is_file():
            return record.instance(data / file)
    return None


# What is kept.


def save(record: Record, schedule: Schedule | None, certificate: AnyCertificate | None) -> None:
    """Write what is known of an instance: its arrays, then its row of the index."""
    if schedule is None or certificate is None:
        return  # the rest comes next
    order = np.argsort(schedule.instance.areas, kind="stable")  # close in it, close in time
    numbers = {"waits": (schedule.starts - schedule.instance.arrivals)[order]}
    if schedule.placement.any():
        numbers["placement"] = schedule.placement
    content = pack(numbers, certificate)
    assert unpack(content)[1] == certificate
    write_whole(RECORDS / "arrays" / f"{record.name}.npz", content)
    rows = {each.name: row_of(each) for each in library().values()} | {record.name: row_of(record)}
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    write_whole(RECORDS / "index.json", "{\n" + ",\n".join(lines) + "\n}\n")


def row_of(record: Record) -> dict[str, Any]:
    """Return the row of the index, without the name and what is as usual."""
    values = {each.name: (getattr(record, each.name), each.default) for each in fields(record)}
    return {
        key: value for key, (value, usual) in values.items() if value != usual and key != "name"
    }


def pack(numbers: dict[str, IntArray], certificate: AnyCertificate) -> bytes:
    """Return what `optsched.experiments.records.unpack` reads."""
    numbers, files = dict(numbers), dict[str, Any]()
    content: dict[str, Any] = json.loads(certificate.to_json())
    for key, value in content.items():
        nested = isinstance(value, list) and len(value) > 2 and isinstance(value[0], list)
        rows = value if nested else [value] if isinstance(value, list) and len(value) > 2 else []
        if rows and all(isinstance(number, int) for row in rows for number in row):
            content[key] = [len(row) for row in rows] if nested else None
            numbers[PROOF + key] = np.concatenate([np.array(row, np.int64) for row in rows])
    files[PROOF] = np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)
    for key, values in numbers.items():
        steps = [np.diff(values, order, prepend=np.zeros(order, np.int64)) for order in range(3)]
        best = min(range(3), key=lambda order: np.abs(steps[order]).sum(dtype=float))
        unsigned = ((steps[best] << 1) ^ (steps[best] >> 63)).astype("<u8")
        planes = np.ascontiguousarray(unsigned.view(np.uint8).reshape(-1, 8).T)
        used = 1 + max(np.flatnonzero(planes.any(axis=1)), default=0)
        files[f"{key} {best}"] = planes[:used]
    stream = BytesIO()
    np.savez_compressed(stream, **files)
    return stream.getvalue()


def coarsened(
    record: Record, instance: Instance, proof: AnyCertificate, proves: float
) -> tuple[AnyCertificate, float]:
    """Return a certificate with shorter numbers that proves as much, but for `FINE`, and that."""
    names = [name for name in vars(proof) if name.endswith("denominator")]
    for bits in WIDTHS:
        changes: dict[str, Any] = {}
        for name in names:
            fine = getattr(proof, name)
            changes[name] = min(fine, 2**bits)
            shared = ("sizes",) if name == "size_denominator" else PRICED_WITH
            for each in shared:
                if hasattr(proof, each):
                    changes[each] = rounded(getattr(proof, each), changes[name] / fine)
        if all(changes[name] == getattr(proof, name) for name in names):
            break
        shorter = replace(proof, **changes)
        if (found := record.proven(shorter, instance)) >= proves - FINE * proves:
            claim = Fraction(found)
            if record.clock is None:  # where it is rounded up
                claim = optsched.verify(shorter, instance, *several(record))
            return replace(shorter, value=claim), found
    return proof, proves


def rounded(numbers: tuple[Any, ...], share: float) -> tuple[Any, ...]:
    """Round a share of whole numbers, or of lists of them."""
    if numbers and isinstance(numbers[0], tuple):
        return tuple(rounded(each, share) for each in numbers)
    return tuple(np.rint(np.array(numbers, dtype=float) * share).astype(np.int64).tolist())


def several(record: Record) -> tuple[Any, ...]:
    """Return the workers that a certificate in steps is verified with."""
    return (record.memories,) if record.clock is None and len(record.memories) > 1 else ()


# What is tried: each way yields schedules, certificates, and bounds without one.

Found = tuple[str, Schedule | None, "AnyCertificate | None", float]


def ways(record: Record, instance: Instance, work: float, seed: int) -> Iterator[Found]:
    """Try everything that suits an instance."""
    if record.clock is not None:
        yield from on_clock(record, instance)
        return
    if record.criterion == "makespan":
        yield from shortest(record, instance, work)
        return
    if record.gap > 0 and len(instance) <= EXACT:
        yield from exactly(record, instance, work)
        if library()[record.name].gap == 0:
            return
    start = record.schedule(instance) if math.isfinite(record.objective) else None
    yield searched(record, instance, work, seed, start)
    known = library()[record.name]
    if len(record.memories) == 1 and known.gap > 0:
        yield from climbed(known, instance, work)
        known = library()[record.name]
    if known.gap > LARGE and len(instance) <= SIZED and record.memories.equal:
        yield sized(known, instance, work)


def searched(
    record: Record, instance: Instance, work: float, seed: int, start: Schedule | None
) -> Found:
    """Search by work alone: the same answer however fast the machine is."""
    params = SolveParams(seed=seed, start=start, work=work)
    found = solve(
        instance, workers=record.memories, method="search", time_limit=None, params=params
    )
    proof = found.certificate or found.price_certificate
    return f"search, work {work:g}", found.schedule, proof, -math.inf


def climbed(record: Record, instance: Instance, work: float) -> Iterator[Found]:
    """Raise prices, and count the memory that requests keep free to grow."""
    proof, budget = record.certificate, Budget(work=ASCENT * work)
    plan = record.schedule(instance)
    if isinstance(proof, Certificate):
        priced = improve_prices(plan, proof, budget).prices
        assert priced is not None
        yield "prices", None, priced, -math.inf
        proof = sawtooth_bound(instance, priced, record.memories, budget.work).certificate
    if isinstance(proof, SawtoothCertificate):
        proof = improve_charges(plan, proof, budget).certificate
        yield "prices and growth", None, proof, -math.inf


def sized(record: Record, instance: Instance, work: float) -> Found:
    """Find sizes of running requests, which see where large ones leave memory empty."""
    alone = len(record.memories) == 1
    found = configuration_bound(
        instance,
        workers=None if alone else record.memories,
        iterations=math.ceil(1000 * work),
        time_limit=min(10 * work, PROVING),
        start=record.certificate if alone else None,
    )
    return "sizes", None, found.certificate, -math.inf


def exactly(record: Record, instance: Instance, work: float) -> Iterator[Found]:
    """Solve to the proof; one without a certificate counts where two solvers have it."""
    proofs, limit, single = [], min(10 * work, PROVING), len(record.memories) == 1
    if single and instance.arrivals[0] == instance.arrivals[-1]:
        best = record.schedule(instance)
        for name, solver in APART.items():
            with suppress(OptschedError):  # where memory does not do
                closed = solver(instance, upper=best, time_limit=limit, memory_limit=ROOM)
                best = closed.schedule
                yield name, best, None, -math.inf
                if closed.proven_optimal:
                    proofs.append((best.total_latency, name))
    for method in () if proofs else ("exact", "cp-sat"):
        if method == "exact" and not record.memories.equal:
            continue
        found = solve(instance, workers=record.memories, method=method, time_limit=limit)
        name = found.proof if found.proven_optimal else method
        yield name, found.schedule, found.certificate, -math.inf
        if found.proven_optimal:
            proofs.append((found.objective, found.proof))
    if len({cost for cost, _ in proofs}) == 1 and len({proof for _, proof in proofs}) == 2:
        yield f"{TWO}{', '.join(proof for _, proof in proofs)}", None, None, proofs[0][0]


def shortest(record: Record, instance: Instance, work: float) -> Iterator[Found]:
    """Search for a short schedule, and find sizes that prove how long any is."""
    found = solve(instance, objective="makespan", time_limit=work)
    assert found.schedule is not None
    yield found.proof if found.proven_optimal else "auto", found.schedule, None, -math.inf
    until = cpu_seconds() + work
    sizes = makespan_by_sizes(instance, lambda: cpu_seconds() > until, found.schedule.makespan)
    assert isinstance(sizes.certificate, MakespanCertificate)
    yield "sizes", None, sizes.certificate, -math.inf


def on_clock(record: Record, instance: Instance) -> Iterator[Found]:
    """Run policies, and price memory and batches."""
    assert record.clock is not None
    workers = record.memories
    alone = len(workers) == 1
    options = [{}] if alone else [{"workers": workers, "router": each} for each in ROUTERS]
    for policy in POLICIES:
        for each in options:
            try:
                made = run(instance, policy, clock=record.clock, **each)
            except OptschedError as error:
                print(f"  {policy} {each.get('router', '')}: left out, {error}", file=sys.stderr)
                continue
            plan = in_batches(made)
            yield plan.policy, plan, None, -math.inf
    methods: tuple[BoundMethod, ...] = ("closed-form", "path", "lagrangian")
    for method in methods:
        if method == ("path" if not alone else "lagrangian" if len(instance) > PRICED else ""):
            continue
        proof = bound(instance, method, clock=get_clock(record.clock), workers=len(workers))
        yield f"{proof.method} bound", None, proof.certificate, -math.inf


def improved(record: Record, instance: Instance, work: float, seed: int) -> Record:
    """Try all ways; keep what is verified and better, and return the record as it is then."""
    before, schedule, proof, certified = record, None, None, -math.inf
    if math.isfinite(record.objective):
        schedule, proof = record.schedule(instance), record.certificate
        certified = record.proven(proof, instance)
    first = began = cpu_seconds()
    for method, plan, certificate, value in ways(record, instance, work, seed):
        began = first if math.isfinite(value) else began  # a proof is of all that came before
        by = Finder(method, optsched.__version__, round(cpu_seconds() - began, 2), TODAY)
        if plan is not None and (cost := record.cost(plan, instance)) < record.objective:
            schedule, record = plan, replace(record, objective=cost, schedule_by=by)
            save(record, schedule, proof)
        if certificate is not None and (proves := record.proven(certificate, instance)) > certified:
            shorter, proves = coarsened(record, instance, certificate, proves)
            if proves > certified:
                proof, certified = shorter, proves
            if proves > record.bound:
                by_path = getattr(shorter, "counted", 0)
                name = "a path on the clock" if by_path else KINDS[type(shorter).__name__]
                kind = by._replace(method=name)
                record = replace(record, bound=proves, bound_by=kind)
            save(record, schedule, proof)
        if value > record.bound:
            record = replace(record, bound=int(value), bound_by=by)
            save(record, schedule, proof)
        began = cpu_seconds()
    said = f"gap {percent(record.gap, 3)}, was {percent(before.gap, 3)}"
    print(f"{record.name}: {record.objective:,.10g}, {said}", flush=True)
    return record


@main.command()
@NAMES
@DATA
@click.option("--work", default=5.0, help="Units of work of a search, as of `SolveParams`.")
@click.option("--seed", default=0, help="Seed of the searches.")
def improve(names: tuple[str, ...], data: Path | None, work: float, seed: int) -> None:
    """Look for better schedules and bounds of NAMES, or of all instances."""
    run_of = {"work": work, "seed": seed, "version": optsched.__version__}
    state = json.loads(STATE.read_text()) if STATE.is_file() else {}
    done = state.get("done", []) if {key: state.get(key) for key in run_of} == run_of else []
    for record in sorted(chosen(names), key=urgency):
        if record.name in done and not names:
            continue
        if (instance := instance_of(record, data)) is None:
            print(f"{record.name}: left out, there is no {TRACES[record.trace]}", file=sys.stderr)
            continue
        improved(record, instance, work, seed)
        done.append(record.name)
        STATE.parent.mkdir(exist_ok=True)
        write_whole(STATE, json.dumps({**run_of, "done": done}))
    if not names:
        STATE.unlink(missing_ok=True)


@main.command()
@click.argument("name")
@click.argument("trace")
@DATA
@click.option("--memory", type=int, required=True)
@click.option("--limit", type=int, help="Requests of a trace.")
@click.option("--workers", default="1")
@click.option("--clock")
@click.option("--offline", is_flag=True)
@click.option("--criterion", default="total-latency", type=click.Choice(OBJECTIVES))
def add(name: str, trace: str, data: Path | None, limit: int | None, **recipe: Any) -> None:
    """Add an instance, of which nothing is known yet but what a policy finds."""
    step = 1e-6 if recipe["clock"] is not None else 0.05
    source: Any = trace
    if trace in TRACES:
        assert data is not None, "a trace needs --data"
        source = next(data / file for file in FILES[trace] if (data / file).is_file())
    made = optsched.read_trace(source, recipe["memory"], limit=limit, seconds_per_step=step)
    if recipe["offline"]:
        made = made.replace(arrivals=None)
    record = Record(
        name,
        trace,
        requests=len(made),
        fingerprint=made.fingerprint,
        seconds_per_step=step,
        **recipe,
    )
    improved(record, made.replace(name=name), 0.1, 0)


@main.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@DATA
@click.option("--by", required=True, help="Who found it, and how.")
@click.option("--cpu-seconds", default=0.0)
def take(name: str, file: Path, data: Path | None, by: str, cpu_seconds: float) -> None:
    """Take a schedule or a certificate that `optsched library NAME --submit FILE` calls better."""
    record, finder = library()[name], Finder(by, optsched.__version__, cpu_seconds, TODAY)
    instance = instance_of(record, data)
    assert instance is not None, f"{name} needs {TRACES[record.trace]}"
    kind, value = record.verified(file, instance)
    schedule, proof = record.schedule(instance), record.certificate
    if kind == "objective":
        assert value < record.objective
        schedule = Schedule.from_json(file, record.counted(instance), record.memories)
        save(replace(record, objective=value, schedule_by=finder), schedule, proof)
    else:
        assert value > record.bound
        proof, value = coarsened(record, instance, optsched.read_certificate(file), value)
        save(replace(record, bound=value, bound_by=finder), schedule, proof)


# The net for the quality of searches.


def is_compared(record: Record) -> bool:
    """Say whether a search is measured on an instance."""
    least, most = MEASURED
    plain = record.trace not in TRACES and record.clock is None
    return plain and record.criterion == "total-latency" and least <= record.requests <= most


@main.command()
@NAMES
@click.option("--work", default=0.3, help="Units of work of a search, as of `SolveParams`.")
@click.option("--seed", default=0, help="Seed of the searches.")
@click.option("--write", is_flag=True, help="Keep the gaps as those to compare with.")
def compare(names: tuple[str, ...], work: float, seed: int, write: bool) -> None:
    """Search each instance anew; exit code 1 if the median gap is worse than at the same work."""
    known = json.loads(AT_WORK.read_text(encoding="utf-8")) if AT_WORK.is_file() else {}
    gaps: dict[str, float] = {}
    for record in chosen(names):
        if not is_compared(record):
            continue
        _, schedule, certificate, _ = searched(record, record.instance(), work, seed, None)
        assert schedule is not None
        assert certificate is not None
        gaps[record.name] = float(1 - certificate.value / schedule.total_latency)
        was = known.get("gaps", {}).get(record.name)
        beside = "" if was is None else f", {percent(was, 3)} before"
        print(f"{record.name}: {percent(gaps[record.name], 3)}{beside}", flush=True)
    if write:
        kept = known["gaps"] if known.get("work") == work else {}
        content = {"work": work, "version": optsched.__version__, "gaps": kept | gaps}
        write_whole(AT_WORK, json.dumps(content, indent=1) + "\n")
        return
    sys.exit(verdict(gaps, known, work))


def verdict(gaps: dict[str, float], known: dict[str, Any], work: float) -> int:
    """Say whether the median gap got worse by more than noise."""
    if known.get("work") != work:
        print(f"there are no gaps at work {work:g} to compare with; make them with --write")
        return 2
    common = [name for name in gaps if name in known["gaps"]]
    now = statistics.median(gaps[name] for name in common)
    before = statistics.median(known["gaps"][name] for name in common)
    worse = now > before * (1 + NOISE)
    print(
        f"median gap of {len(common)} instances at work {work:g}: {percent(now, 3)}, "
        f"{percent(before, 3)} with version {known['version']}: {'worse' if worse else 'no worse'}"
    )
    return int(worse)


if __name__ == "__main__":
    main()
