"""Harmony, the format of gpt-oss: messages on channels, and a call is a message addressed to functions.NAME.

The analysis channel is the reasoning, final and unaddressed commentary are the content. The prompt ends with
<|start|>assistant, so the first message of a reply has no start of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from turnwise.toolcalls.jsoncall import NotJSON, checked, decode_all
from turnwise.toolcalls.records import ParsedReply, Reply, ToolCall, Tools, join

EXAMPLE = '<|channel|>commentary to=functions.tool <|constrain|>json<|message|>{"key": "value"}<|call|>'

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CLOSES = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_THINKING = f"{CHANNEL}analysis"


@dataclass(frozen=True, slots=True)
class _Piece:
    """One message of a reply."""

    header: str
    body: str | None  # None: it never began
    span: tuple[int, int]
    close: str  # the mark that ended it; empty where the next message, or nothing, did


def parse(reply: Reply, tools: Tools | None = None) -> ParsedReply:
    said: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    complete = True
    for piece in _pieces(reply):
        found = _CHANNEL.search(piece.header)
        channel = found[1] if found else ""
        recipient = _RECIPIENT.search(piece.header)
        if recipient and recipient[1] != "assistant":  # a tool's reply, made up by the model, is addressed to it
            calls.append(_call(piece, channel, recipient[1].removeprefix("functions."), tools, reply))
        elif channel == "analysis":
            thoughts.append(piece.body or "")
        elif not recipient:
            plain = piece.body is None and not found and START not in piece.header  # text without any markup
            said.append(piece.header if plain else piece.body or "")
        complete = channel != "analysis" or bool(piece.close)
    return ParsedReply(join(said), join(thoughts), complete, tuple(calls))


def split(reply: Reply) -> ParsedReply:
    """Reasoning and content of a reply that can call nothing: what is addressed to a tool is neither."""
    return replace(parse(reply), calls=())


def _call(piece: _Piece, channel: str, name: str, tools: Tools | None, reply: Reply) -> ToolCall:
    at_end = not piece.close and piece.span[1] == len(reply.text)
    if piece.body is None or (at_end and not reply.stopped):
        return ToolCall(name, {}, "unclosed_block", piece.span, "<|call|> is missing")
    if channel == "analysis":
        return ToolCall(name, {}, "malformed_structure", piece.span, "a call stands on the commentary channel")
    try:
        arguments = decode_all(piece.body)
    except NotJSON as error:
        return ToolCall(name, {}, "invalid_json", piece.span, str(error))
    if not name:
        return ToolCall("", {}, "missing_name", piece.span, "the message is addressed to no tool")
    call = checked(name, arguments, piece.span, tools)
    # An engine may leave the stop token out; a call that another mark ends is still clear.
    flaw = "" if piece.close == "<|call|>" or at_end else "it did not end with <|call|>"
    return ToolCall(name, call.arguments, call.status, piece.span, call.flaw or flaw)


def _pieces(reply: Reply) -> Iterator[_Piece]:
    """The messages in order; together they cover the reply."""
    text = reply.text
    begin, header = 0, _THINKING if reply.thinking else None  # the header: None while it is being read
    body = 0
    for mark in reply.marks(START, CHANNEL, MESSAGE, *CLOSES):
        if header is None:
            if mark[0] == MESSAGE:
                header, body = text[begin : mark.start()], mark.end()
            elif mark[0] in CLOSES or (mark[0] == START and text[begin : mark.start()].strip()):
                if text[begin : mark.start()].strip():
                    yield _Piece(text[begin : mark.start()], None, (begin, mark.start()), "")
                begin = mark.start() if mark[0] == START else mark.end()
        elif mark[0] != MESSAGE:
            ended = mark[0] in CLOSES
            stop = mark.end() if ended else mark.start()
            yield _Piece(header, text[body : mark.start()], (begin, stop), mark[0] if ended else "")
            begin, header = stop, None
    if header is not None:
        yield _Piece(header, text[body:], (begin, len(text)), "")
    elif text[begin:].strip():
        yield _Piece(text[begin:], None, (begin, len(text)), "")
