"""The trace formats: which column means what, and in which unit its clock counts."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

from optsched.errors import InstanceError, nearest
from optsched.workloads.cells import IGNORED, NUMBER, STAMP, TEXT, WHOLE, Kind

#: How the cells of a field of `Instance` are read, where they are not whole numbers.
FIELD_KINDS = {"weights": NUMBER, "labels": TEXT}


@dataclass(frozen=True)
class TraceFormat:
    """What the columns of a trace mean."""

    name: str
    fields: dict[str, str]
    clock: str
    clock_kind: Kind = NUMBER
    units_per_second: int = 1
    optional: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    public: bool = True

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """How the cells of each column are read."""
        kinds = {column: FIELD_KINDS.get(field, WHOLE) for column, field in self.fields.items()}
        return {**dict.fromkeys(self.ignored, IGNORED), **kinds, self.clock: self.clock_kind}

    @property
    def required(self) -> list[str]:
        """The columns without which there is no instance."""
        return [name for name in (*self.fields, self.clock) if name not in self.optional]

    def column(self, field: str, header: list[str]) -> str:
        """Return the column of this header that a field of `Instance` was made from."""
        names = (name for name, meant in self.fields.items() if meant == field and name in header)
        return next(names, self.clock)


NATIVE = TraceFormat(
    "optsched CSV",
    {
        "prompt_tokens": "prompts",
        "output_tokens": "outputs",
        "arrival": "arrivals",
        "weight": "weights",
        "deadline": "deadlines",
        "output_lower": "output_lower",
        "output_upper": "output_upper",
        "label": "labels",
    },
    clock="arrival_s",
    optional=frozenset(
        "arrival arrival_s weight deadline output_lower output_upper label".split()  # noqa: SIM905
    ),
    public=False,
)

MOONCAKE = TraceFormat(
    "Mooncake JSONL",
    {"input_length": "prompts", "output_length": "outputs"},
    clock="timestamp",
    units_per_second=1000,
)

#: The formats with a header line.
CSV_FORMATS = (
    NATIVE,
    TraceFormat(
        "Azure LLM inference",
        {"ContextTokens": "prompts", "GeneratedTokens": "outputs"},
        clock="TIMESTAMP",
        clock_kind=STAMP,
        units_per_second=10**9,
    ),
    TraceFormat(
        "BurstGPT",
        {"Request tokens": "prompts", "Response tokens": "outputs"},
        clock="Timestamp",
        ignored=frozenset({"Session ID", "Elapsed time", "Model", "Total tokens", "Log Type"}),
    ),
    TraceFormat(
        "Vidur",
        {"num_prefill_tokens": "prompts", "num_decode_tokens": "outputs"},
        clock="arrived_at",
        optional=frozenset({"arrived_at"}),
        ignored=frozenset({"", "Unnamed: 0", "num_total_tokens", "pd_ratio"}),
    ),
)


def recognised(header: list[str], source: str) -> TraceFormat:
    """Tell which format a header line belongs to."""
    form = max(CSV_FORMATS, key=lambda form: len(form.kinds.keys() & set(header)))
    known = form.kinds.keys()
    where = f"{source}, line 1"
    if unknown := [name for name in header if name not in known]:
        # Without any known column the format itself is unclear.
        names = known if known & set(header) else {n for form in CSV_FORMATS for n in form.required}
        raise InstanceError(
            f"{where}: unknown column {unknown[0]!r}; {nearest(unknown[0], names)}",
            column=unknown[0],
        )
    if missing := [name for name in form.required if name not in header]:
        raise InstanceError(
            f"{where}: column {missing[0]!r} of the {form.name} format is missing",
            column=missing[0],
        )
    name, times = Counter(header).most_common(1)[0]
    if times > 1:
        raise InstanceError(f"{where}: column {name!r} is there {times} times", column=name)
    if form is NATIVE and {"arrival", "arrival_s"} <= set(header):
        raise InstanceError(
            f"{where}: arrival (steps) and arrival_s (seconds) are both there; keep one of them",
            column="arrival",
        )
    return form
