"""Leaves secrets out of traces.

A secret is named by its key in the arguments of a tool call, but the model wrote it in a reply, whose ids spell it too,
and later prompts show it again. So its value is taken out of every text of the trace, and so are the ids of such texts.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.traces.entries import Entry

MARK = "[redacted]"


def redact(entries: Sequence[Entry], keys: Collection[str]) -> list[Entry]:
    """The entries without what stands under these keys, upper and lower case being the same."""
    names = {key.casefold() for key in keys}
    secrets = {secret for entry in entries if entry.kind == "tool" for secret in _under(entry.inputs, names, False)}
    if not secrets:
        return list(entries)
    spellings = {text for one in secrets for text in (one, _in_json(one, True), _in_json(one, False))}
    hidden = sorted(spellings, key=len, reverse=True)  # the longest first, since one may be a part of another

    def clean(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, MARK)
        return text

    return [_cleaned(_blanked(entry, names) if entry.kind == "tool" else entry, clean) for entry in entries]


def _in_json(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _blanked(entry: Entry, names: Collection[str]) -> Entry:
    """Without what stands under the keys of its inputs, numbers too."""

    def blank(tree: Any, named: bool) -> Any:
        if isinstance(tree, Mapping):
            return {key: blank(value, named or str(key).casefold() in names) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return [blank(value, named) for value in tree]
        return MARK if named and _is_secret(tree) else tree

    return replace(entry, inputs=blank(entry.inputs, False))


def _cleaned(entry: Entry, clean: Callable[[str], str]) -> Entry:
    inputs, outputs = _map(entry.inputs, clean), _map(entry.outputs, clean)
    attributes = _map(entry.attributes, clean)
    for ids, before, after in (("prompt_ids", entry.inputs, inputs), ("token_ids", entry.outputs, outputs)):
        if ids in attributes and before != after:
            attributes[ids] = None
    return replace(entry, inputs=inputs, outputs=outputs, attributes=attributes)


def _under(tree: Any, names: Collection[str], named: bool) -> Iterator[str]:
    """The values under the keys, as a text would show them."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _under(value, names, named or str(key).casefold() in names)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _under(value, names, named)
    elif named and _is_secret(tree):
        yield str(tree)


def _is_secret(value: Any) -> bool:
    return value not in ("", None) and not isinstance(value, bool)


def _map(tree: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return clean(tree)
    if isinstance(tree, Mapping):
        return {key: _map(value, clean) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not all(isinstance(value, int) for value in tree):
        return [_map(value, clean) for value in tree]
    return tree
