"""How models write tool calls, one small file a format. Pure functions of the sampled text that never raise."""

from collections.abc import Callable
from dataclasses import dataclass

from turnwise.components import nearest
from turnwise.toolcalls import gpt_oss, hermes, llama3_json, qwen3_coder
from turnwise.toolcalls.records import UNREADABLE, ParsedReply, Reply, ToolCall, Tools, decode_reply
from turnwise.toolcalls.tagged import split_tagged

__all__ = [
    "FORMATS",
    "UNREADABLE",
    "ParsedReply",
    "Reply",
    "ToolCall",
    "ToolFormat",
    "Tools",
    "decode_reply",
    "find_format",
]


@dataclass(frozen=True)
class ToolFormat:
    """One way of writing calls."""

    name: str
    parse: Callable[[Reply, Tools | None], ParsedReply]  # without tools, names and types are not looked up
    split: Callable[[Reply], ParsedReply]  # the same where nothing can be called: reasoning and content alone
    example: str  # what a call looks like: the answer to a malformed one quotes it
    markup: tuple[str, ...]  # what vocabularies tend to have as tokens of their own; see `decode_reply`


_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>")
_HARMONY = (gpt_oss.START, gpt_oss.CHANNEL, gpt_oss.MESSAGE, *gpt_oss.CLOSES)
FORMATS = {
    "hermes": ToolFormat("hermes", hermes.parse, split_tagged, hermes.EXAMPLE, _THINK + _CALL),
    "qwen3_coder": ToolFormat("qwen3_coder", qwen3_coder.parse, split_tagged, qwen3_coder.EXAMPLE, _THINK + _CALL),
    "llama3_json": ToolFormat(
        "llama3_json", llama3_json.parse, split_tagged, llama3_json.EXAMPLE, (*_THINK, llama3_json.TAG)
    ),
    "gpt_oss": ToolFormat("gpt_oss", gpt_oss.parse, gpt_oss.split, gpt_oss.EXAMPLE, _HARMONY),
}
_ALIASES = {
    **{"qwen2.5": "hermes", "qwen3": "hermes"},
    **{"qwen3-coder": "qwen3_coder", "qwen3_xml": "qwen3_coder", "qwen3.5": "qwen3_coder"},
    **{"llama3-json": "llama3_json", "gpt-oss": "gpt_oss", "harmony": "gpt_oss"},
}


def find_format(name: str) -> ToolFormat:
    """A format by its name, or by one of the names that models and other frameworks give it."""
    if _ALIASES.get(name, name) not in FORMATS:
        raise ValueError(f"tool format {name!r} is unknown{nearest(name, [*FORMATS, *_ALIASES])}")
    return FORMATS[_ALIASES.get(name, name)]
