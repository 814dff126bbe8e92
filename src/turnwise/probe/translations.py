"""What a model says instead of a legal action, and which one it may have meant."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnwise.parse import normalise
from turnwise.types import Segment

NEAREST = 3  # suggestions for a text
CUTOFF = 0.5  # of difflib's ratio: half of the letters of both are common, and in the same order


@dataclass(frozen=True)
class InvalidText:
    """As an environment's `translate` gets it: in lower case, without quotes and end punctuation; empty for none."""

    said: str
    count: int
    nearest: tuple[str, ...]  # legal actions, the nearest first; by spelling alone, so a person must choose


def invalid_texts(episodes: Iterable[Segment], actions: Sequence[str], most: int) -> list[InvalidText]:
    """The most frequent ones."""
    turns = (turn for episode in episodes for turn in episode.turns)
    counts = Counter(normalise(t.action.said) for t in turns if t.action and t.action.status == "invalid")
    return [InvalidText(said, count, nearest_actions(said, actions)) for said, count in counts.most_common(most)]


def nearest_actions(said: str, actions: Sequence[str]) -> tuple[str, ...]:
    plain = {normalise(action): action for action in actions}
    return tuple(plain[near] for near in difflib.get_close_matches(said, plain, NEAREST, CUTOFF))


def translation_table(texts: Iterable[InvalidText]) -> str:
    """Lines for a dict of Python, the nearest action first and the others behind it as a comment."""
    lines = []
    for text in texts:
        if text.nearest:
            first, *others = map(repr, text.nearest)
            lines.append(f"{text.said!r}: {first}," + (f"  # or {', '.join(others)}" if others else ""))
    return "\n".join(lines)
