"""What environments that are played in words share: spaces of phrases and of texts, and checks of arguments."""

import difflib
from typing import Any

from gymnasium import spaces


class Phrases(spaces.Text):
    """A text space that holds only these phrases."""

    def __init__(self, phrases: tuple[str, ...]):
        super().__init__(max(map(len, phrases)), charset=frozenset("".join(phrases)))
        self.phrases = phrases

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self.phrases[self.np_random.integers(len(self.phrases))]

    def contains(self, x: Any) -> bool:
        return x in self.phrases


class FreeText(spaces.Text):
    """A space of any text, for games whose words nobody has listed."""

    def __init__(self):
        super().__init__(4096)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def texts(*keys: str) -> spaces.Space[dict[str, str]]:
    """The space of dicts that hold any text under each of these keys."""
    space: Any = spaces.Dict({key: FreeText() for key in keys})  # which Gymnasium declares a space of dicts of spaces
    return space


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value in allowed:
        return value
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{key} is {value!r}{hint}, but must be one of: {', '.join(allowed)}.")


def positive(key: str, value: int | None) -> int | None:
    """A number of turns or the like; None: no limit."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{key} is {value!r}, but must be a whole number, at least 1, or null for no limit.")
    return value
