"""A sampled reply, and what it says once it has been read: reasoning, content and tool calls.

Plain and frozen. Nothing here executes a call, and no reader of replies raises.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Status = Literal[
    "ok",
    "unknown_tool",  # well written, but no tool has this name
    "invalid_json",
    "invalid_arguments",  # JSON, but no object
    "missing_name",
    "malformed_structure",  # the markup inside the call is broken
    "unclosed_block",
]

UNREADABLE: tuple[Status, ...] = ("invalid_json", "missing_name", "malformed_structure", "unclosed_block")

# Tool name -> JSON Schema of its parameters.
Tools = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it, broken ones included, so that each can be answered."""

    name: str  # empty where the markup names no tool
    arguments: Mapping[str, Any]  # empty where they could not be read
    status: Status
    span: tuple[int, int]  # characters of the reply, markup included
    flaw: str = ""  # what is wrong; an ok call with a flaw was tolerated


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What a reply says."""

    content: str  # the text outside reasoning and calls
    reasoning: str
    reasoning_complete: bool  # False: the reply ended inside it
    calls: tuple[ToolCall, ...]  # in the order written; none of them stands in the reasoning


@dataclass(frozen=True, slots=True)
class Reply:
    """A sampled reply as text, decoded with its special tokens.

    `tokens` keeps markup apart from text that only looks like it. It maps each piece of markup that the vocabulary has
    as a token of its own to the characters at which such a token begins; markup that is no key counts wherever it is
    spelt. With {"<tool_call>": frozenset()} the reply quotes the tag, and calls nothing.
    """

    text: str
    stopped: bool = True  # the model ended it; False: the length limit cut it
    thinking: bool = False  # the prompt had already opened the reasoning
    tokens: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def marks(self, *markup: str) -> Iterator[re.Match[str]]:
        """Where this markup stands, from left to right."""
        for found in _any_of(markup).finditer(self.text):
            places = self.tokens.get(found[0])
            if places is None or found.start() in places:
                yield found


@lru_cache(maxsize=64)
def _any_of(markup: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markup)))


def decode_reply(
    token_ids: Sequence[int], markup: Mapping[int, str], decode: Callable[[Sequence[int]], str], **how: bool
) -> Reply:
    """The reply that these ids spell, with the places of its special tokens.

    `markup` maps the ids of such tokens to their text; what stands between them is decoded run by run, so `decode`
    must not add or strip spaces at the edges (byte-level tokenizers do not). `how` is `stopped` and `thinking`.
    """
    places: dict[str, set[int]] = {text: set() for text in markup.values()}
    pieces: list[str] = []
    length, run = 0, 0  # characters so far, and where the tokens not decoded yet begin
    for number, token in enumerate((*token_ids, None)):
        if token is not None and token not in markup:
            continue
        plain = decode(token_ids[run:number]) if number > run else ""
        mark = "" if token is None else markup[token]
        if mark:
            places[mark].add(length + len(plain))
        pieces += [plain, mark]
        length, run = length + len(plain) + len(mark), number + 1
    return Reply("".join(pieces), tokens={text: frozenset(found) for text, found in places.items()}, **how)


_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>")


def end_of_text(text: str) -> int:
    """Where the text ends if the end tokens and blanks after it are left out."""
    end = len(text)
    while end:
        size = 1 if text[end - 1].isspace() else next((len(mark) for mark in _ENDS if text.endswith(mark, 0, end)), 0)
        if not size:
            break
        end -= size
    return end


def join(pieces: Sequence[str]) -> str:
    """The texts between the calls, as one."""
    return "\n".join(stripped for piece in pieces if (stripped := piece.strip()))
