"""Where in a conversation the answer stands."""

from collections.abc import Sequence

from turnwise.types import Message


def last_reply(messages: Sequence[Message]) -> str:
    """What the model said last; nothing if it said nothing."""
    return next((message["content"] for message in reversed(messages) if message["role"] == "assistant"), "")


def part_after(text: str, mark: str) -> str:
    """What follows the last mark; nothing where it is missing, everything where no mark is asked for."""
    if not mark:
        return text
    return text.rpartition(mark)[2] if mark in text else ""
