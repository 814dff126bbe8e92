"""Whether a finished conversation reads as the template alone would have written it. Looks, and changes nothing."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, get_args

from turnwise.chat_template import Tools
from turnwise.render import Renderer
from turnwise.types import Message

Mode = Literal["strict", "ignore_strippable", "disable"]
_CONTEXT = 10  # characters on either side of a difference
_LONGEST = 80  # characters of a difference that are quoted


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """What a check found."""

    differs: bool
    characters: int = 0  # that changed: of each stretch between two special tokens, from the first to the last that did
    message: str = ""  # the first difference, where there is one


@dataclass(frozen=True, slots=True)
class _Change:
    read: tuple[int, int]  # characters of the row
    written: tuple[int, int]  # and of what the template writes

    @property
    def characters(self) -> int:
        return max(end - start for start, end in (self.read, self.written))


def check_tokens(
    renderer: Renderer, messages: Sequence[Message], row: Sequence[int], tools: Tools = (), mode: Mode = "strict"
) -> TokenCheck:
    """Compare the ids of a row with those of the whole conversation, rendered and tokenised at once.

    The row holds the last prompt and, where the last message is a reply, that reply's sampled ids. With "strict" any
    difference counts, with "ignore_strippable" only one that changes more than white space.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"the mode of the token check is {mode!r}; choose {', '.join(get_args(Mode))}")
    if mode == "disable":
        return TokenCheck(False)
    row = (*row, *renderer.end(messages[-1])) if "token_ids" in messages[-1] else tuple(row)
    try:
        whole = renderer.whole(messages, tools)
    except ValueError as error:  # a template may take a conversation, and refuse it with the reply
        return TokenCheck(True, 0, str(error))
    if row == whole:
        return TokenCheck(False)
    read, written = _text(renderer, row), _text(renderer, whole)
    changes = list(_changes(read, written, _special(renderer)))
    if mode == "ignore_strippable":
        changes = [one for one in changes if _solid(read, one.read) != _solid(written, one.written)]
        if not changes:
            return TokenCheck(False)
    if not changes:
        return TokenCheck(True, 0, _other_tokens(renderer, row, whole))
    first = f"{_quote(read, changes[0].read)} was read where the template writes {_quote(written, changes[0].written)}"
    return TokenCheck(True, sum(one.characters for one in changes), first)


def _changes(read: str, written: str, special: re.Pattern[str]) -> Iterator[_Change]:
    """The stretches that differ. They are found between special tokens, since a finer search takes quadratic time."""
    ours, theirs = special.split(read), special.split(written)
    starts, others = _starts(ours), _starts(theirs)
    for kind, a, b, c, d in SequenceMatcher(None, ours, theirs).get_opcodes():
        if kind != "equal":
            yield _trimmed(read, (starts[a], starts[b]), written, (others[c], others[d]))


def _starts(pieces: list[str]) -> list[int]:
    """Where each piece begins, and where the last one ends."""
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    return starts


def _trimmed(read: str, here: tuple[int, int], written: str, there: tuple[int, int]) -> _Change:
    """A change without what both of its sides begin and end with."""
    (a, b), (c, d) = here, there
    while a < b and c < d and read[a] == written[c]:
        a, c = a + 1, c + 1
    while a < b and c < d and read[b - 1] == written[d - 1]:
        b, d = b - 1, d - 1
    return _Change((a, b), (c, d))


def _solid(text: str, span: tuple[int, int]) -> str:
    return "".join(text[slice(*span)].split())


def _quote(text: str, span: tuple[int, int]) -> str:
    start, end = span
    before, after = text[max(0, start - _CONTEXT) : start], text[end : end + _CONTEXT]
    changed = text[start:end]
    if len(changed) > _LONGEST:
        changed = f"{changed[: _LONGEST // 2]}...{changed[-_LONGEST // 2 :]}"
    return repr(before + changed + after)


def _other_tokens(renderer: Renderer, row: Sequence[int], whole: Sequence[int]) -> str:
    """How rows differ that spell the same text."""
    pairs = enumerate(zip(row, whole, strict=False))
    place = next((number for number, (ours, theirs) in pairs if ours != theirs), min(len(row), len(whole)) - 1)
    ours, theirs = (_text(renderer, [ids[place]]) for ids in (row, whole))
    return f"the text is the same, but its token {place} is {ours!r} where the template's is {theirs!r}"


def _special(renderer: Renderer) -> re.Pattern[str]:
    """Where a special token begins."""
    special = [token.content for token in renderer.tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile(f"(?={'|'.join(map(re.escape, special))})")


def _text(renderer: Renderer, ids: Sequence[int]) -> str:
    text = renderer.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text
