"""Long replies cut to a number of tokens, or of any other pieces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MARK = "(truncated)"
# What is kept is looked for in so many characters a piece: a reply of 10 MB is not tokenised whole.
_CHARACTERS_A_PIECE = 32


@dataclass(frozen=True)
class Shorten:
    """Keeps `limit` pieces: the last (`left` is cut), the first (`right`), or half of them at each end (`middle`).

    A mark, not counted, stands where something is missing. With a tokenizer's `encode` (without special tokens) and
    `decode` the pieces are its tokens; by default they are characters. Half characters at a cut are left out.
    """

    limit: int = 256
    side: Literal["left", "right", "middle"] = "middle"
    encode: Callable[[str], Sequence[Any]] = list
    decode: Callable[[Sequence[Any]], str] = "".join

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"a reply's limit is {self.limit}; it must be 0 or more")
        if self.side not in ("left", "right", "middle"):
            raise ValueError(f"a reply's side is {self.side!r}; it is left, right or middle")

    def __call__(self, text: str) -> str:
        reach = _CHARACTERS_A_PIECE * self.limit
        if len(text) <= reach and len(self.encode(text)) <= self.limit:
            return text
        if self.side == "left":
            return f"{MARK}...{self._last(text, reach, self.limit)}"
        if self.side == "right":
            return f"{self._first(text, reach, self.limit)}...{MARK}"
        half = self.limit // 2
        return f"{self._first(text, reach, half)}...{MARK}...{self._last(text, reach, half)}"

    def _first(self, text: str, reach: int, count: int) -> str:
        return self.decode(self.encode(text[:reach])[:count]).rstrip("\ufffd") if count else ""

    def _last(self, text: str, reach: int, count: int) -> str:
        return self.decode(self.encode(text[-reach:])[-count:]).lstrip("\ufffd") if count else ""
