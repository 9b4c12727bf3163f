"""Spans of OpenTelemetry as JSON (OTLP): one row for each request of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
_ERROR = (2, "2", "STATUS_CODE_ERROR")


def has_spans(document: object) -> bool:
    """Whether a document is of spans."""
    return isinstance(document, dict) and _KEY in document


def requests_in(documents: list[Any]) -> tuple[list[tuple[int, JSON]], str]:
    """Return the requests with the numbers of their spans, and a remark on spans left out.

    A gateway, an agent and a server each write a span of one request, one inside the other: the
    innermost counts. Of a span that is there twice, as after an export that was tried again, one
    counts.
    """
    found: dict[object, tuple[int, JSON]] = {}
    parents: dict[object, object] = {}
    spans = _inside(_inside(_inside(documents, _KEY), "scopeSpans"), "spans")
    for number, span in enumerate(spans, 1):
        own = span.get("traceId"), span.get("spanId") or number
        parents[own] = span.get("traceId"), span.get("parentSpanId")
        if (row := _request(span)) is not None:
            found.setdefault(own, (number, row))
    if not found:
        raise InstanceError(
            f"none of its {len(parents)} spans is a request of a language model: they lack "
            "gen_ai.usage attributes; export the spans of the gateway or the server"
        )
    failed = {
        own for own, (_, row) in found.items() if {"error_message", "error.type"} & row.keys()
    }
    # What failed inside may have been tried again, so that the request did not.
    outer = {
        above
        for own in found
        for above in _above(own, parents)
        if above in found and (above in failed or own not in failed)
    }
    said = f"spans around others, of the same requests, do not count: {len(outer):,}"
    return [each for own, each in found.items() if own not in outer], said if outer else ""


def _above(own: object, parents: Mapping[object, object]) -> list[object]:
    """Return the spans around one, from the inside; a circle ends."""
    found = [own]
    while (own := parents.get(own)) is not None and own not in found:
        found.append(own)
    return found[1:]


def _inside(contents: Iterable[object], key: str) -> Iterator[JSON]:
    """Yield the objects in the lists that objects have under a key."""
    for content in contents:
        values = content.get(key) if isinstance(content, dict) else None
        if isinstance(values, list):
            yield from (each for each in values if isinstance(each, dict))


def _request(span: JSON) -> JSON | None:
    """Return what a span says of a request; None where it is of something else."""
    attributes = _inside([span], "attributes")
    row: JSON = {str(each.get("key")): _value(each.get("value")) for each in attributes}
    operation = row.get("gen_ai.operation.name")
    if operation in _OTHERS or not (operation or any("gen_ai.usage." in key for key in row)):
        return None
    status = span.get("status")
    if isinstance(status, dict) and status.get("code") in _ERROR:
        row |= {"status": "error", "error_message": status.get("message")}
    begin, end = (_whole(span.get(f"{name}TimeUnixNano")) for name in ("start", "end"))
    row["startTimeUnixNano"] = begin
    if "gen_ai.latency.e2e" not in row and isinstance(begin, int) and isinstance(end, int):
        row["duration_s"] = (end - begin) / 1e9
    return row


def _value(typed: Any) -> Any:
    """Return a value without its type; a list of one, as of reasons to finish, is that one."""
    kind, value = next(iter(typed.items()), ("", None)) if isinstance(typed, dict) else ("", typed)
    if kind != "arrayValue":
        return _whole(value) if kind == "intValue" else value
    values = list(map(_value, _inside([value], "values")))
    return values[0] if len(values) == 1 else values


def _whole(value: Any) -> Any:
    """Return a number of 64 bits, which JSON has as a text; another text as it is."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
