"""Spans of OpenTelemetry as JSON (OTLP): one row for each request of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from optsched.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched._internal.files import JSON

_KEY = "resourceSpans"
#: Operations that make no tokens, or whose tokens their parts make.
_OTHERS = {
    *("create_agent", "invoke_agent", "invoke_workflow"),
    *("embeddings", "execute_tool", "retrieval"),
}
_LATENCY = "gen_ai.latency.e2e"
_FAILED = (2, "2", "STATUS_CODE_ERROR")


class _Request(NamedTuple):
    number: int  # of its span, from 1
    row: JSON
    failed: bool


def has_spans(document: object) -> bool:
    """Whether a document is of spans."""
    return isinstance(document, dict) and _KEY in document


def requests_in(documents: Iterable[tuple[int, object]]) -> tuple[list[tuple[int, JSON]], str]:
    """Return the requests with the numbers of their spans, and a remark on spans left out.

    A gateway, an agent and a server each write a span of one request, one inside the other: the
    innermost counts. Of a span that is there twice, as after an export that was tried again, one
    counts.
    """
    found: dict[object, _Request] = {}
    parents: dict[object, object] = {}
    number = 0
    for line, document in documents:
        if not isinstance(document, dict):
            raise InstanceError(f"line {line} holds no JSON object; is its end missing?")
        for span in _spans(document):
            number += 1
            trace, name = span.get("traceId"), span.get("spanId")
            own: object = (trace, name) if name else number
            parents[own] = (trace, span.get("parentSpanId"))
            request = _request(number, span)
            if request is not None:
                found.setdefault(own, request)
    if not found:
        said = (
            f"none of its {number} spans is a request of a language model: they lack gen_ai.usage"
        )
        raise InstanceError(f"{said} attributes; export the spans of the gateway or the server")
    outer = set[object]()
    for own, request in found.items():
        for above in _above(own, parents):
            # What failed inside may have been tried again, so that the request did not.
            if above in found and (found[above].failed or not request.failed):
                outer.add(above)
    said = (
        f"spans around others, of the same requests, do not count: {len(outer):,}" if outer else ""
    )
    kept = (request for own, request in found.items() if own not in outer)
    return [(request.number, request.row) for request in kept], said


def _above(own: object, parents: Mapping[object, object]) -> Iterator[object]:
    """Yield the spans around one, from the inside; a circle ends."""
    seen = {own}
    while (own := parents.get(own)) is not None and own not in seen:
        seen.add(own)
        yield own


def _spans(document: JSON) -> Iterator[JSON]:
    for resource in _objects(document, _KEY):
        for scope in _objects(resource, "scopeSpans"):
            yield from _objects(scope, "spans")


def _objects(content: object, key: str) -> list[JSON]:
    values = content.get(key) if isinstance(content, dict) else None
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _request(number: int, span: JSON) -> _Request | None:
    """Return what a span says of a request; None where it is of something else."""
    row = _attributes(span, "attributes")
    failed = "error.type" in row
    status = span.get("status")
    if isinstance(status, dict) and status.get("code") in _FAILED:
        failed = True
        row |= {"status": "error", "error_message": status.get("message")}
    operation = row.get("gen_ai.operation.name")
    says = [key for key in row if key.startswith("gen_ai.")]
    used = any(key.startswith("gen_ai.usage.") for key in says)
    if operation in _OTHERS or not (used or operation or (failed and says)):
        return None
    begin, end = (_whole(span.get(f"{name}TimeUnixNano")) for name in ("start", "end"))
    row["startTimeUnixNano"] = begin
    if _LATENCY not in row and isinstance(begin, int) and isinstance(end, int):
        row["duration_s"] = (end - begin) / 1e9
    return _Request(number, row, failed)


def _attributes(content: object, key: str) -> JSON:
    return {str(each.get("key")): _value(each.get("value")) for each in _objects(content, key)}


def _value(typed: Any) -> Any:
    """Return a value without its type; a list of one, as of reasons to finish, is that one."""
    kind, value = next(iter(typed.items()), ("", None)) if isinstance(typed, dict) else ("", typed)
    if kind == "arrayValue":
        values = [_value(each) for each in _objects(value, "values")]
        return values[0] if len(values) == 1 else values
    if kind == "kvlistValue":
        return _attributes(value, "values")
    return _whole(value) if kind == "intValue" else value


def _whole(value: Any) -> Any:
    """Return a number of 64 bits, which JSON has as a text; another text as it is."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
