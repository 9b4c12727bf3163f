"""Every reader on mutated files: an object that is valid, or one sentence."""

import functools
import gzip
import random
import re
import warnings

from campaign import enumeration
from campaign.case import Outcome, one_sentence, within
from campaign.corpus import PLAIN, corpus
from optsched import OptschedError, Schedule, read_certificate, read_model, read_trace, verify
from optsched.experiments.sweep_plan import read_plan
from optsched.workloads import read_trace_skipping, read_types

TITLE = "readers"
SECONDS = 60

NASTY = [
    "0", "-1", "1", "-0", "00", "1.0", "1.5", "1e3", "1e400", "-1e400", "9223372036854775807",
    "9223372036854775808", "1e18", "4294967296", "99999999999999999999999999", "nan", "NaN",
    "inf", "-inf", "Infinity", "null", "true", "false", "None", "0x10", "1_000", "1,2", "[]",
    "{}", "[1]", "[[1]]", '""', "''", '"', "'", ";", "\\", "\\u0000", "\\ud800", "٣", "½", "三",
    "é", "😀", "\u202e", "\u2028", "\x85", "\x1c", "2023-02-30", "9999-12-31",
    "1970-01-01T00:00:00Z", "24:61:61",
]  # fmt: skip
NASTY += ["", " ", "\t", "\n", "\r", "\r\n", "\0", "\x0b", "\ufeff", "9" * 5000, "x" * 70_000]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
WORD = re.compile(r"[A-Za-z_][A-Za-z_ ]*")


@functools.cache
def files():
    """Return the valid files, in a fixed order."""
    return sorted(corpus().items())


def case(seed, folder):
    """Mutate one file and read it; most often the mutated text, sometimes its gzip."""
    rng = random.Random(seed)
    outcome = Outcome(inputs=1)
    (kind, name), text = rng.choice(files())
    content = mutated(text, rng, [other for _, other in files()])
    suffix = {"trace": ".csv", "types": ".toml", "sweep": ".toml", "model": f".{name}"}.get(
        kind, ".json"
    )
    if kind == "trace" and rng.random() < 0.25:
        content, suffix = packed(content, rng), suffix + rng.choice(["", ".gz"])
    path = folder / f"input{suffix}"
    path.write_bytes(content)
    try:
        with within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            READERS[kind](path, rng, outcome)
    except OptschedError as error:
        outcome.note("refused")
        outcome.check(one_sentence(error), name, "message:", repr(str(error)))
    except Exception as error:
        outcome.check(False, name, f"{type(error).__name__}: {error};", repr(content[:200]))
    else:
        outcome.note("read")
    return outcome


def read_as_trace(path, rng, outcome):
    """Read a trace strictly and without bad rows, which is the same if all rows are good."""
    memory = rng.choice([None, 16_492, 16_492, 16_492, 2**40])
    if path.read_bytes()[:1] != b"{" or b"input_length" in path.read_bytes():
        memory = memory or 16_492
    try:
        strict = read_trace(path, memory)
    except OptschedError as error:
        strict, refusal = None, error
    try:
        instance, skipped = read_trace_skipping(path, memory)
    except OptschedError:
        outcome.check(strict is None, "only the strict reading accepts", path.read_bytes()[:200])
        raise
    outcome.check(bool(skipped) == (strict is None), "skipped", skipped, "but strict gives", strict)
    outcome.check(instance == strict or strict is None, "strict and skipping differ")
    check_instance(instance, outcome)
    if strict is None:
        raise refusal


def check_instance(instance, outcome):
    """Look at everything that an instance promises."""
    ranges = (instance.prompts >= 0) & (instance.outputs >= 1) & (instance.arrivals >= 0)
    fits = instance.prompts + instance.outputs <= instance.memory
    sorted_ = (instance.arrivals[1:] >= instance.arrivals[:-1]).all()
    outcome.check(ranges.all() and fits.all() and sorted_, "not valid:", instance)
    outcome.check(type(instance).from_json(instance.to_json()) == instance, "JSON loses", instance)


def read_as_types(path, rng, outcome):
    """Read request types."""
    types, _, memory = read_types(path)
    good = (types.prompts >= 0).all() and (types.outputs >= 1).all() and (types.rates > 0).all()
    outcome.check(good and (memory is None or memory >= 1), "not valid:", types, memory)


def read_as_sweep(path, rng, outcome):
    """Read the plan of a sweep."""
    plan = read_plan(path)
    outcome.check(len({run.key for run in plan.runs}) == len(plan.runs), "runs twice")


def read_as_certificate(path, rng, outcome):
    """Read a certificate and verify it: whatever it has become, it proves no more than is true."""
    certificate = read_certificate(path)
    outcome.check(verify(certificate, PLAIN) <= least(), "proves too much:", certificate)


def read_as_schedule(path, rng, outcome):
    """Read and check a schedule."""
    schedule = Schedule.from_json(path, PLAIN)
    if not schedule.check():
        outcome.check(schedule.total_latency >= least(), "below the optimum:", schedule.starts)


@functools.cache
def least():
    """Least total latency of the instance that certificates and schedules are of."""
    return enumeration.optima(PLAIN)["total-latency"]


def read_as_model(path, rng, outcome):
    """Read a linear model."""
    model = read_model(path)
    model.violations(model.col_lower)


READERS = {
    "model": read_as_model,
    "trace": read_as_trace,
    "types": read_as_types,
    "sweep": read_as_sweep,
    "certificate": read_as_certificate,
    "schedule": read_as_schedule,
}


def packed(content, rng):
    """Pack with gzip, and damage some."""
    data = bytearray(gzip.compress(content, mtime=0))
    damage = rng.randrange(4)
    if damage == 1:
        data = data[: rng.randrange(1, len(data))]
    elif damage == 2:
        data[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
    elif damage == 3:
        data += rng.randbytes(rng.randrange(1, 40))
    return bytes(data)


def mutated(text, rng, others):
    """Change a text in one to three ways."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        text = rng.choice(TEXT_MUTATIONS)(text, rng, others)
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        content = rng.choice(BYTE_MUTATIONS)(content, rng)
    return content


def _replace(pattern):
    def mutate(text, rng, others):
        found = list(pattern.finditer(text))
        if not found:
            return text
        match = rng.choice(found)
        return text[: match.start()] + rng.choice(NASTY) + text[match.end() :]

    return mutate


def _other_number(text, rng, others):
    found = list(NUMBER.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    number = str(rng.choice([rng.randrange(100), rng.randrange(10**18), -rng.randrange(100)]))
    return text[: match.start()] + number + text[match.end() :]


def _swap_columns(text, rng, others):
    rows = [line.split(",") for line in text.split("\n")]
    width = max(map(len, rows))
    a, b = rng.randrange(width), rng.randrange(width)
    for row in rows:
        if max(a, b) < len(row):
            row[a], row[b] = row[b], row[a]
    return "\n".join(",".join(row) for row in rows)


def _lines(text, rng, others):
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    change = rng.randrange(4)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(at, lines[at])
    elif change == 2:
        lines.insert(at, rng.choice(rng.choice(others).split("\n")))
    else:
        rng.shuffle(lines)
    return "\n".join(lines)


def _cut(text, rng, others):
    return text[: rng.randrange(len(text) + 1)]


def _splice(text, rng, others):
    other = rng.choice(others)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other)) :]


def _delete(text, rng, others):
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randrange(20) :]


def _insert(text, rng, others):
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(NASTY) + text[at:]


def _nest(text, rng, others):
    at, depth = rng.randrange(len(text) + 1), rng.choice([3, 2_000, 200_000])
    return text[:at] + rng.choice(["[", '{"a":']) * depth + text[at:]


def _line_ends(text, rng, others):
    return text.replace("\n", rng.choice(["\r\n", "\r", "\n\n", "\n ", "\n\ufeff"]))


def _separators(text, rng, others):
    return text.replace(",", rng.choice([";", "\t", ", ", ",,", " , "]))


TEXT_MUTATIONS = [
    *2 * [_replace(NUMBER), _other_number],
    _replace(WORD),
    _swap_columns,
    *2 * [_lines],
    _cut,
    _splice,
    _delete,
    _insert,
    _nest,
    _line_ends,
    _separators,
]


def _flip(content, rng):
    data = bytearray(content)
    for _ in range(rng.choice([1, 2, 8]) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


BYTE_MUTATIONS = [
    _flip,
    _flip,
    lambda content, rng: b"\xef\xbb\xbf" + content,
    lambda content, rng: content.decode("utf-8", "replace").encode("utf-16"),
    lambda content, rng: rng.randbytes(rng.randrange(200)),
    lambda content, rng: b"",
    lambda content, rng: content + rng.randbytes(20),
]
