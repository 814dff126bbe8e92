"""What the environments that are played in phrases share: a space of phrases, and a check of named choices."""

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


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value in allowed:
        return value
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{key} is {value!r}{hint}, but must be one of: {', '.join(allowed)}.")
