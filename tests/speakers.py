"""Stand-ins for the models of five families: a small tokenizer with the family's special tokens and template, and the
way in which its models write reasoning and calls."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import make_tokenizer

from turnwise.types import Message, MessageCall

TEMPLATES = Path(__file__).parent / "templates"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name}.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "time")
]
MERGES = ["i n", "in g", "t h", "th e", "Ġ the", "â Ĥ", "ð Ł", '{ "', '" :']

Spell = Callable[[str, str, Sequence[MessageCall]], str]


@dataclass(frozen=True)
class Speaker:
    tokenizer: Any
    spell: Spell  # reasoning, content, calls -> what is sampled, without the end token
    end: int  # of a reply
    call_end: int  # of a reply with calls
    tools: Sequence[Any]  # what its template can show

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids))

    def say(self, said: str, thought: str = "", calls: Sequence[MessageCall] = ()) -> Message:
        """A reply that was sampled to its end."""
        ids = (*self.ids(self.spell(thought, said, calls)), self.call_end if calls else self.end)
        message: Message = {"role": "assistant", "content": said, "token_ids": ids}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def cut(self, reply: Message, length: int) -> Message:
        """The same, stopped by the length limit: nobody reads calls or reasoning out of it."""
        ids = tuple(reply.get("token_ids", ())[:length])
        return {"role": "assistant", "content": self.text(ids), "token_ids": ids}


def call(name: str, number: int = 0, **arguments: Any) -> MessageCall:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(text: str, to: MessageCall) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": to["id"]}


def _think(thought: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n" if thought else ""


def _json(call: MessageCall, arguments: str) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], arguments: function["arguments"]}, ensure_ascii=False)


def _hermes(thought: str, said: str, calls: Sequence[MessageCall]) -> str:
    tagged = [f"<tool_call>\n{_json(one, 'arguments')}\n</tool_call>" for one in calls]
    return _think(thought) + "\n".join(filter(None, [said, *tagged]))


def _opened(thought: str, said: str, calls: Sequence[MessageCall]) -> str:
    return f"{thought}\n</think>\n\n{_hermes('', said, calls)}"


def _llama(thought: str, said: str, calls: Sequence[MessageCall]) -> str:
    return "; ".join(_json(one, "parameters") for one in calls) or _think(thought) + said


def _gemma(thought: str, said: str, calls: Sequence[MessageCall]) -> str:
    return _think(thought) + "\n".join(filter(None, [said, *(_json(one, "arguments") for one in calls)]))


def _harmony(thought: str, said: str, calls: Sequence[MessageCall]) -> str:
    pieces = [f"<|channel|>analysis<|message|>{thought}<|end|>"] if thought else []
    if said and calls:
        pieces.append(f"<|channel|>commentary<|message|>{said}<|end|>")
    for one in calls:
        name, arguments = one["function"]["name"], json.dumps(one["function"]["arguments"], ensure_ascii=False)
        pieces.append(f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>")
    if not calls:
        pieces.append(f"<|channel|>final<|message|>{said}")
    return "<|start|>assistant".join(pieces).removesuffix("<|call|>")


def _speaker(
    name: str, spell: Spell, end: str, special: Sequence[str], call_end: str = "", tools: Any = TOOLS
) -> Speaker:
    tokenizer = make_tokenizer((TEMPLATES / f"{name}.jinja").read_text(), end, special, MERGES)
    tokenizer.bos_token = special[0]
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    end_id, call_end_id = tokenizer.convert_tokens_to_ids([end, call_end or end])
    return Speaker(tokenizer, spell, end_id, call_end_id, tools)


_CHATML = ["<|im_start|>", "<|im_end|>"]
_LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"]
_HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"]
SPEAKERS = {
    "qwen2_5": _speaker("qwen2_5", _hermes, "<|im_end|>", _CHATML),
    "qwen3": _speaker("qwen3", _hermes, "<|im_end|>", _CHATML),
    "qwq": _speaker("qwq", _opened, "<|im_end|>", _CHATML),
    "llama3": _speaker("llama3", _llama, "<|eot_id|>", _LLAMA),
    "gpt_oss": _speaker("gpt_oss", _harmony, "<|return|>", _HARMONY, "<|call|>"),
    "gemma3": _speaker("gemma3", _gemma, "<end_of_turn>", ["<bos>", "<start_of_turn>", "<end_of_turn>"], tools=()),
}
