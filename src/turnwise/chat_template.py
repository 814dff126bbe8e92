"""What a model's chat template writes: whole conversations, and what stands between a reply and the next one.

Text only; `render` makes ids of it. What a template does with replies, calls and tools is found out by trying it.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from turnwise.types import CalledFunction, Message, MessageCall

Tools = Sequence[Mapping[str, Any]]  # the nested form of OpenAI: {"type": "function", "function": {...}}

# Private-use characters: no template strips them, and no tokeniser's chat markup contains them.
_PRIVATE = range(0xE000, 0xF900)
# Stands in the middle of what only spells a special token. To Unicode it is no character, so no text has it.
SEAM = "\ufdd0"
# Llama 3 may end a reply that makes a call with this token, where its template writes <|eot_id|>.
_OTHER_ENDS = ("<|eom_id|>",)
# What is given to templates anyway, or says what becomes of what they write.
_OURS = {"messages", *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters}
# What templates take for today, since a run that goes on tomorrow must have the same prompts: it is what Llama 3 says
# where it has no clock.
_TODAY = date(2024, 7, 26)
_NOW = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_ID = "call00000"  # nine letters and digits, as the templates of Mistral want them
ASK: Message = {"role": "user", "content": "?"}
_REPLY: Message = {"role": "assistant", "content": "!"}
_ANSWER: Message = {"role": "tool", "content": "!", "name": "tool", "tool_call_id": _ID}


@dataclass(frozen=True, slots=True)
class Sequel:
    """The text after a reply."""

    close: str  # the token that ends the reply, with the blanks before it; empty where the template writes none
    close_id: int | None
    rest: str


class ChatTemplate:
    """The chat template of one tokenizer; `kwargs` is what it asks besides messages and tools."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any] = MappingProxyType({})):
        if not tokenizer.chat_template:
            raise ValueError(
                f"model: {tokenizer.name_or_path!r} has no chat template; choose an instruct model, "
                "or add a chat_template.jinja to its folder"
            )
        for name in kwargs:
            if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                raise ValueError(
                    f"model.chat_template_kwargs has {name}, for which the chat template of "
                    f"{tokenizer.name_or_path!r} does not ask; leave it out"
                )
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs)
        dated, found = _NOW.subn(lambda now: json.dumps(_TODAY.strftime(now[2])), str(tokenizer.chat_template))
        self._dated = dated if found else None  # None: as it is
        added = tokenizer.added_tokens_decoder.items()  # those without a name of their own are special too
        special = [(token.content, number) for number, token in added if token.special]
        self._special = sorted(special, key=lambda token: -len(token[0]))
        # Some models mark their turns by tokens that are not called special.
        marks = {token.content for _, token in added if token.special or token.content in str(tokenizer.chat_template)}
        texts = "|".join(map(re.escape, sorted(marks))) or "(?!)"
        self._spelt = re.compile(f"(?={texts}).", re.DOTALL)  # the first character of each
        self._takes_answers = self._takes_systems = True
        said = mark_of([])
        answer: Message = {**_ANSWER, "content": said}
        self._takes_answers = said in self.attempt(ASK, _REPLY, answer) + self.attempt(ASK, _calling("tool"), answer)
        told = self.attempt({"role": "system", "content": said}, ASK)
        self._takes_systems = not told or said in told  # one that refuses them says so itself
        self._end = self._find_end()
        self._call_end = self._find_call_end()
        self.names_answers = self._answers_need_calls()
        others = [number for text, number in special if text in _OTHER_ENDS]
        # The special tokens with which replies end.
        self.ends = frozenset(token for token in (self._end, self._call_end[1], *others) if token is not None)
        self.shows_tools = self._shows_tools()
        self.shows_calls = mark_of([]) in self.attempt(ASK, _calling("tool", mark_of([])), reply=False)
        self.shows_reasoning = self._shows_reasoning()

    def write(self, messages: Sequence[Message], tools: Tools = (), reply: bool = True) -> str:
        """The conversation, and with `reply` the opening of the next reply. Raises ValueError if it is refused.

        Special tokens are the template's alone: what others say, in which one is spelt, has a `SEAM` in it.
        """
        plain = [self._seamed(_plain(one)) for one in messages]
        if not self._takes_answers:
            plain = _answers_as_questions(plain)
        if not self._takes_systems and any(one["role"] == "system" for one in messages):
            raise ValueError(
                f"model: the chat template of {self._tokenizer.name_or_path!r} drops system messages, which hold the "
                "instructions; choose a model whose template shows them, or change the template in its folder"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                plain,
                tools=[dict(one) for one in tools] or None,
                tokenize=False,
                add_generation_prompt=reply,
                chat_template=self._dated,
                **self._kwargs,
            )
        except (TemplateError, TypeError, RecursionError) as error:  # a model may nest arguments without end
            name = self._tokenizer.name_or_path
            raise ValueError(f"model: the chat template of {name!r} refuses the conversation: {error}") from error
        assert isinstance(text, str)
        return text

    def attempt(self, *messages: Message, tools: Tools = (), reply: bool = True) -> str:
        """The same; empty where the template refuses."""
        try:
            return self.write(messages, tools, reply)
        except ValueError:
            return ""

    def sequel(self, following: Sequence[Message], calls: Sequence[MessageCall], tools: Tools, reply: bool) -> Sequel:
        """What is written after a reply that made these calls, where these messages follow it.

        They are written behind a fixed question and reply. So the text depends on nothing that was said before, and a
        template that shows old replies otherwise than new ones cannot change it later.
        """
        answers = len([*takewhile(lambda one: one["role"] == "tool", following)]) if self.names_answers else 0
        if not answers:
            hole = mark_of(following)
            text = self.write([ASK, {"role": "assistant", "content": hole}, *following], tools, reply)
            return self.after(hole, text)[1]
        # Each answer behind a call of its own: such templates take one call a reply, or name all answers after one.
        parts = [self._after_call(calls, [answer], tools, False) for answer in following[: answers - 1]]
        parts.append(self._after_call(calls, following[answers - 1 :], tools, reply))
        return Sequel(parts[0].close, parts[0].close_id, "".join(part.rest for part in parts))

    def opening(self, before: Sequence[Message], tools: Tools) -> str:
        """With which a reply is opened where these messages come before all others: some system messages change it."""
        closed, opened = (self.attempt(*before, ASK, tools=tools, reply=reply) for reply in (False, True))
        return opened.removeprefix(closed) if closed and opened.startswith(closed) else ""

    def after(self, hole: str, text: str, called: bool = False) -> tuple[str, Sequel]:
        """What is written before and after a mark in the place of a reply, or in its last call if it `called`."""
        before, found, text = text.partition(hole)
        if not found:
            raise ValueError(
                f"model: the chat template of {self._tokenizer.name_or_path!r} drops or changes past replies, "
                "so this memory cannot show them; use a memory that shows none, such as window with turns=0"
            )
        if called:
            return before, Sequel(*self._call_end, text.partition(self._call_end[0])[2])
        end = None if self._end is None else self._special_at(text)
        if end is None:
            return before, Sequel("", None, text)
        close = text[: len(text) - len(text.lstrip())] + end[0]
        return before, Sequel(close, end[1], text[len(close) :])

    def _seamed(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message, in which nothing spells a special token, unless the model said it."""
        if message["role"] == "assistant":
            return message
        return {**message, "content": self._spelt.sub(rf"\g<0>{SEAM}", message["content"])}

    def _after_call(
        self, calls: Sequence[MessageCall], following: Sequence[Message], tools: Tools, reply: bool
    ) -> Sequel:
        hole = mark_of(following)
        text = self.write([ASK, _calling(_caller(following[0], calls), hole), *following], tools, reply)
        return self.after(hole, text, called=True)[1]

    def _find_end(self) -> int | None:
        """The token after a reply."""
        hole = mark_of([])
        text = self.attempt(ASK, {"role": "assistant", "content": hole}, reply=False)
        end = self._special_at(text.partition(hole)[2])  # none in a template that shows no replies
        return end and end[1]

    def _find_call_end(self) -> tuple[str, int | None]:
        """The last token of a call."""
        hole = mark_of([])
        written = self.attempt(ASK, _calling("tool", hole), reply=False).partition(hole)[2].rstrip()
        return next((token for token in self._special if written.endswith(token[0])), ("", None))

    def _answers_need_calls(self) -> bool:
        """Whether an answer without its call is refused, or the name of the call is written beside the answer."""
        if not self._takes_answers or self._call_end[1] is None:
            return False
        name = mark_of([])
        written = self.attempt(ASK, _calling(name), _ANSWER).partition(name)[2]
        return not self.attempt(ASK, _REPLY, _ANSWER) or name in written.partition(self._call_end[0])[2]

    def _shows_tools(self) -> bool:
        name = mark_of([])
        nothing = {"type": "object", "properties": {}, "required": []}
        tool = {"type": "function", "function": {"name": name, "description": "", "parameters": nothing}}
        text = self.attempt(ASK, tools=[tool])
        return not text or name in text  # a template that refuses the trial may take the real ones

    def _shows_reasoning(self) -> bool:
        """Whether reasoning that stands apart from the content is shown at least where nothing follows it."""
        thought = mark_of([])
        reply: Message = {"role": "assistant", "content": "!", "reasoning_content": thought}
        return thought in self.attempt(ASK, reply, reply=False)

    def _special_at(self, text: str) -> tuple[str, int] | None:
        """The special token with which a text begins after its blanks; of several the longest."""
        bare = text.lstrip()
        return next((token for token in self._special if bare.startswith(token[0])), None)


def mark_of(messages: Sequence[Message]) -> str:
    """A short text that stands in none of these messages."""
    return marks_of(messages, 1)[0]


def marks_of(messages: Sequence[Message], count: int) -> list[str]:
    """Several of them."""
    shown = json.dumps([_plain(one) for one in messages], ensure_ascii=False)
    letter = next(letter for letter in map(chr, _PRIVATE) if letter not in shown)
    return [f"{letter}{number}{letter}" for number in range(count)]


def _plain(message: Message) -> dict[str, Any]:
    """What a template reads of a message."""
    plain = {key: value for key, value in message.items() if key != "token_ids" and value}
    if "reasoning_content" in plain:
        plain["thinking"] = plain["reasoning_content"]  # as gpt-oss calls it
    return {"content": "", **plain}


def _answers_as_questions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of tools as words of the user, for templates that know of no tools; users do not speak twice."""
    told: list[dict[str, Any]] = []
    answered = False
    for one in messages:
        was, answered = answered, one["role"] == "tool"
        if answered:
            one = {"role": "user", "content": f"<tool_response>\n{one['content']}\n</tool_response>"}
        if (was or answered) and told and told[-1]["role"] == one["role"] == "user":
            one = {"role": "user", "content": f"{told.pop()['content']}\n{one['content']}"}
        told.append(one)
    return told


def unread_call(answer: Message) -> MessageCall:
    """The call that is answered, where nobody could read it."""
    function: CalledFunction = {"name": answer.get("name", "tool"), "arguments": {}}
    return {"id": answer.get("tool_call_id", _ID), "type": "function", "function": function}


def _calling(name: str, argument: str = "") -> Message:
    function: CalledFunction = {"name": name, "arguments": {argument: ""} if argument else {}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}


def _caller(answer: Message, calls: Sequence[MessageCall]) -> str:
    """The name of the tool that answers: as the answer gives it, or as the call with the same id does."""
    called = next((call["function"]["name"] for call in calls if call["id"] == answer.get("tool_call_id")), "tool")
    return answer.get("name") or called
