"""Leaves secrets out of traces.

A secret is named by its key in the arguments of a tool call, but the model wrote it in a reply, whose ids spell it too,
and later prompts show it again. So its value is taken out of every text of the trace, and so are the ids of such texts.
"""

import json
import re
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
    # The longest first, since one may be a part of another.
    hidden = sorted({text for one in secrets for text in _spellings(one)}, key=len, reverse=True)
    escaped = re.compile("|".join("".join(map(_escaped, one)) for one in sorted(secrets, key=len, reverse=True)))

    def clean(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, MARK)
        return escaped.sub(MARK, text) if "\\" in text else text

    return [_cleaned(_blanked(entry, names) if entry.kind == "tool" else entry, clean) for entry in entries]


def _spellings(secret: str) -> list[str]:
    """As it is, in JSON, and in JSON inside a string of JSON, as arguments may be written."""
    spelt = [secret]
    for _ in range(2):
        spelt += [json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in spelt for ascii_only in (True, False)]
    return spelt


def _escaped(letter: str) -> str:
    """A pattern of a letter of a secret, which JSON may escape though it need not."""
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    code = "".join(rf"\\{{1,3}}u(?i:{units[place : place + 4]})" for place in range(0, len(units), 4))
    short = re.escape(json.dumps(letter, ensure_ascii=False)[-2])
    # Atomic: a row of backslashes could else be read in more ways than anybody can try.
    return rf"(?>{re.escape(letter)}|\\{{1,3}}{short}|{code})"


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
