"""The walk that the tagged formats share: <think> and <tool_call> blocks in a reply."""

from bisect import bisect_left
from collections.abc import Callable
from re import Match

from turnwise.toolcalls.records import ParsedReply, Reply, ToolCall, end_of_text, join

THINK, UNTHINK = "<think>", "</think>"
OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Blocks:
    """Where calls open and close in one reply; each question is answered by bisection."""

    def __init__(self, reply: Reply):
        self.text = reply.text
        self.end = end_of_text(reply.text)
        self._opens = [mark.start() for mark in reply.marks(OPEN)]
        self._closes = [mark.start() for mark in reply.marks(CLOSE)]

    def next_open(self, start: int, skip: int = 0) -> int:
        """The first opening tag from here on, or a later one, or the end of the reply."""
        place = bisect_left(self._opens, start) + skip
        return self._opens[place] if place < len(self._opens) else self.end

    def next_close(self, start: int) -> int | None:
        """The first closing tag from here on."""
        place = bisect_left(self._closes, start)
        return self._closes[place] if place < len(self._closes) else None


def split_tagged(reply: Reply) -> ParsedReply:
    """Reasoning and content of a reply that can call nothing: tags of calls are content."""
    return parse_tagged(reply, _never)


def _never(mark: Match[str]) -> ToolCall:
    raise AssertionError(f"no tag opens a call, but {mark[0]} did")


def parse_tagged(reply: Reply, read: Callable[[Match[str]], ToolCall], *openings: str) -> ParsedReply:
    """Split a reply at its tags. `read` makes a call of what follows an opening tag, and its span says how far it went.

    Tags inside reasoning open nothing. A reply that closes reasoning it never opened began inside it: templates of
    reasoning models open it in the prompt.
    """
    text, end = reply.text, end_of_text(reply.text)
    thinking = reply.thinking or next((mark[0] for mark in reply.marks(THINK, UNTHINK)), "") == UNTHINK
    thoughts: list[str] = []
    said: list[str] = []
    calls: list[ToolCall] = []
    place = 0
    for mark in reply.marks(THINK, UNTHINK, *openings):
        if mark.start() < place or (thinking and mark[0] != UNTHINK):
            continue  # inside a call, or inside reasoning
        (thoughts if thinking else said).append(text[place : mark.start()])
        thinking = mark[0] == THINK
        place = mark.end()
        if mark[0] not in (THINK, UNTHINK):
            calls.append(read(mark))
            place = calls[-1].span[1]
    (thoughts if thinking else said).append(text[place : max(place, end)])
    return ParsedReply(join(said), join(thoughts), not thinking, tuple(calls))
