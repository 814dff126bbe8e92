"""Two ways to show a conversation whose replies were sampled.

Both give the text up to the first reply that stands as it was sampled, then each such reply with the text after it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from sys import intern

from turnwise.chat_template import ASK, ChatTemplate, Sequel, Tools, mark_of, marks_of, unread_call
from turnwise.remembered import Remembered
from turnwise.types import CalledFunction, Message

Conversation = tuple[str, list[tuple[Sequence[int], Sequel]]]
# What stands between two replies is written once, not in every turn, while 32 slots play 2,000 turns each.
_CACHED = 2**25  # characters
_HEADS = 2**23  # of texts up to the first reply: a memory that shows no replies makes a new one in every turn
_UNTHINK = "</think>"


class Exact:
    """What was shown and sampled stays: every prompt extends the one before it and the reply to that.

    The text after a reply is a function of the messages up to the next reply alone, so nothing later can change it.
    """

    def __init__(self, template: ChatTemplate):
        self._template = template
        self._opened = Remembered(self._open, _HEADS, own=1)
        self._written = Remembered(self._write, _CACHED, own=2)
        self._opening = Remembered(
            lambda system, tools: template.opening(json.loads(system), json.loads(tools)), _HEADS
        )

    def __call__(self, messages: Sequence[Message], tools: Tools) -> Conversation:
        replies = [number for number, message in enumerate(messages) if "token_ids" in message]
        head = messages[: replies[0]] if replies else messages
        if not head:
            raise ValueError("a conversation cannot begin with a sampled reply; put what was asked before it")
        system = [*takewhile(lambda one: one["role"] == "system", messages)]
        shown, told = intern(json.dumps(tools)), intern(json.dumps(system))  # in as many keys as there are replies
        exchanges = [
            (messages[here].get("token_ids", ()), self.sequel(messages[here], messages[here + 1 : there], shown, told))
            for here, there in pairwise([*replies, len(messages)])
        ]
        return self._opened(json.dumps(head), shown), exchanges

    def sequel(
        self,
        reply: Message,
        following: Sequence[Message] = (),
        tools: str = "[]",
        system: str = "[]",
        opened: bool = True,
    ) -> Sequel:
        """What stands after a reply, with `opened` up to where the next one begins.

        Tools, and the system messages with which all begins, are JSON.
        """
        return self._written(json.dumps(following), json.dumps(reply.get("tool_calls", ())), tools, system, opened)

    def _open(self, head: str, tools: str) -> str:
        return self._template.write(json.loads(head), json.loads(tools))

    def _write(self, following: str, calls: str, tools: str, system: str, opened: bool) -> Sequel:
        written = self._template.sequel(json.loads(following), json.loads(calls), json.loads(tools), opened)
        plain, own = self._opening("[]", tools), self._opening(system, tools)
        if opened and own != plain and written.rest.endswith(plain):
            return replace(written, rest=written.rest.removesuffix(plain) + own)
        return written


class Inference:
    """What the template makes of the whole conversation, as in production: old reasoning may be left out.

    A reply whose reasoning the template shows stands as it was sampled, any other as the template writes it. So the
    conversation is written twice for every prompt: first to see what is shown.
    """

    def __init__(self, template: ChatTemplate, text: Callable[[Sequence[int]], str]):
        self._template = template
        self._text = text
        self._fitting = Remembered(self._fit, _CACHED)
        self._header, self._opening = self._find_openings()

    def __call__(self, messages: Sequence[Message], tools: Tools) -> Conversation:
        plain = self.plain(messages)
        marks = marks_of(plain, len(plain))
        replies = [number for number, message in enumerate(messages) if "token_ids" in message]
        kept = self._kept(plain, marks, replies, tools)
        holes = [self._hole(one, marks[number]) if number in kept else one for number, one in enumerate(plain)]
        pieces = [Sequel("", None, self._template.write(holes, tools))]
        for number in kept:
            last = pieces.pop()
            before, after = self._template.after(marks[number], last.rest, self._in_call(plain[number]))
            pieces += [Sequel(last.close, last.close_id, self._reopened(before, plain[number])), after]
        ids = [messages[number].get("token_ids", ()) for number in kept]
        return pieces[0].rest, list(zip(ids, pieces[1:], strict=True))

    def plain(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without their ids, in a form that the template takes."""
        plain = [self._fitted(one) if "token_ids" in one else one for one in messages]
        if self._template.names_answers:
            for number, (one, following) in enumerate(pairwise(plain)):
                if one["role"] == "assistant" and following["role"] == "tool" and not one.get("tool_calls"):
                    plain[number] = {**one, "tool_calls": [unread_call(following)]}
        return plain

    def _kept(self, plain: list[Message], marks: list[str], replies: list[int], tools: Tools) -> list[int]:
        """The replies whose reasoning, or else whose content or call, the template shows."""
        if not replies:
            return []
        asked = [_marked(one, marks[number]) if number in replies else one for number, one in enumerate(plain)]
        text = self._template.write(asked, tools)
        return [number for number in replies if marks[number] in text]

    def _fitted(self, reply: Message) -> Message:
        ids = tuple(reply.get("token_ids", ()))
        return self._fitting(json.dumps({key: value for key, value in reply.items() if key != "token_ids"}), ids)

    def _fit(self, reply_json: str, ids: tuple[int, ...]) -> Message:
        """A reply for templates that know of no reasoning, of none beside content, of no calls, or of one at a time."""
        reply: Message = json.loads(reply_json)
        thoughts, said, calls = reply.get("reasoning_content"), reply["content"], reply.get("tool_calls")
        bare: Message = {"role": "assistant", "content": self._text(ids)}
        if calls and not self._template.shows_calls:
            return bare
        if thoughts and not self._template.shows_reasoning:
            reply = {**reply, "reasoning_content": "", "content": f"<think>\n{thoughts}\n</think>\n\n{said}"}
        joined: Message = {**reply, "content": "", "reasoning_content": "\n\n".join(filter(None, (thoughts, said)))}
        forms = [reply, joined] if calls else [reply]
        return next((form for form in forms if self._template.attempt(ASK, form)), bare)

    def _in_call(self, reply: Message) -> bool:
        """Whether a mark in the place of this reply stands in its call, for the sake of the answers after it."""
        return self._template.names_answers and bool(reply.get("tool_calls"))

    def _hole(self, reply: Message, mark: str) -> Message:
        return _marked_call(reply, mark) if self._in_call(reply) else {"role": "assistant", "content": mark}

    def _find_openings(self) -> tuple[str, str]:
        """What the template writes before the content of a past reply, and before one that is yet to come."""
        hole = mark_of([])
        question, opened = self._template.attempt(ASK, reply=False), self._template.attempt(ASK)
        past = self._template.attempt(ASK, {"role": "assistant", "content": hole}, ASK)
        if hole not in past or not past.startswith(question) or not opened.startswith(question):
            return "", ""
        return past[len(question) :].partition(hole)[0], opened[len(question) :]

    def _reopened(self, before: str, reply: Message) -> str:
        """The text before a past reply, without markup that the reply has itself, with the opening of its reasoning."""
        if self._in_call(reply):  # more markup stands between the opening and the mark
            start, found, _ = before.rpartition(self._opening)
            return start + found or before
        # The model chooses a channel itself, and reasoning that is shown was sampled after an opening that opened it.
        thought = reply.get("reasoning_content") or _UNTHINK in reply["content"]
        if before.endswith(self._header) and (thought or self._header.startswith(self._opening)):
            return before.removesuffix(self._header) + self._opening
        return before


def _marked(reply: Message, mark: str) -> Message:
    """The reply with a mark in its reasoning, or in its content, or in its call, whichever it has first."""
    if thoughts := reply.get("reasoning_content"):
        return {**reply, "reasoning_content": thoughts + mark}
    if reply["content"] or not reply.get("tool_calls"):
        thoughts, closed, said = reply["content"].partition(_UNTHINK)
        return {**reply, "content": thoughts + mark + closed + said}
    return _marked_call(reply, mark)


def _marked_call(reply: Message, mark: str) -> Message:
    """The reply with nothing but its calls, and a mark in the first."""
    calls = list(reply.get("tool_calls", ()))
    function: CalledFunction = {"name": calls[0]["function"]["name"], "arguments": {mark: ""}}
    return {"role": "assistant", "content": "", "tool_calls": [{**calls[0], "function": function}, *calls[1:]]}
