"""Entries of traces, made by hand."""

from typing import Any

from turnwise.traces.entries import Entry


def entry(trace: int = 0, span: int = 0, kind: str = "episode", inputs: Any = None, **attributes: Any) -> Entry:
    outputs = attributes.pop("outputs", None)
    return Entry(trace, span, None if span == 0 else 0, kind, kind, 1.0, 2.0, inputs, outputs, attributes)
