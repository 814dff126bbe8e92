"""The THINK/ACTION answer format: how the model is told to answer, and what its answer means."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import Action, Status

# With all markup before it, each run of which is read once, however long; an underscore alone may be part of a word.
_MARKER = re.compile(
    r"(?:(?<![\w*`])[*_`]*+|(?<![*_`])_*+[*`][*_`]*+)action[\s*_`]*:(?:[*_`]*+(?!action))?", re.IGNORECASE
)
_THINK = re.compile(r"^[\s*_`]*think[\s*_`]*:[*_`]*", re.IGNORECASE)
_EDGES = " \t\"'`*_.,;:!?()[]{}<>“”‘’«»"  # noqa: RUF001


@dataclass(frozen=True)
class ThinkAct:
    """Reads what follows the last ACTION: marker.

    Legal actions are matched with the first line of it, without regard to case, quotes, markup, underscores and end
    punctuation; anything else becomes the default action. With no list of actions, all of it is the action.
    """

    actions: Sequence[str] = ()
    default: str = ""
    cue: str = "What will you do next? Answer in this format:\nTHINK: your reasoning\nACTION: one legal action"

    def __post_init__(self) -> None:
        read: dict[str, str] = {}
        for action in self.actions:
            plain = normalise(action)
            if not plain or plain in read:
                what = f"reads like {read[plain]!r}" if plain else "is nothing"
                raise ValueError(
                    f"the action {action!r} {what} to the answer format, which heeds no case, quotes, markup or end "
                    "punctuation; name it by other words"
                )
            read[plain] = action

    def parse(self, text: str) -> Action:
        marker = max(_MARKER.finditer(text), key=lambda found: found.start(), default=None)
        start = marker.start() if marker else len(text)
        said = "" if marker is None else self._said(marker[0], text[marker.end() :])
        thought = _THINK.sub("", text[:start]).strip()
        action, status = self._meaning(said)
        return Action(action, status, said, thought, start)

    def format(self, thought: str, action: str) -> str:
        return f"THINK: {thought}\nACTION: {action}" if thought else f"ACTION: {action}"

    def _said(self, marker: str, rest: str) -> str:
        if self.actions:
            return next((line.strip() for line in rest.splitlines() if line.strip(_EDGES)), "")
        opened, closed = re.split("action", marker, flags=re.IGNORECASE)
        said = rest.strip()
        # Markup may close after the action, and is none of it.
        return said if closed.strip(" \t\r\n:") else said.removesuffix(opened[::-1]).rstrip()

    def _meaning(self, said: str) -> tuple[str, Status]:
        if not self.actions:
            return (said, "valid") if said else (self.default, "invalid")
        plain = normalise(said)
        for action in self.actions:
            if normalise(action) == plain:
                return action, "valid"
        return self.default, "invalid"


def normalise(text: str) -> str:
    """Lower case, single spaces, no quotes, markup, underscores or end punctuation."""
    return re.sub(r"[\s_]+", " ", text.strip(_EDGES)).strip().lower()
