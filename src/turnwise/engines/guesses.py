"""Which tokens will probably be sampled next, so that one pass can read several of them.

Agents repeat what they have read, and what other agents said. So what followed an ending of a text follows it again: in
the text itself (prompt lookup decoding, Saxena, 2023), or else in what was sampled for others (rollouts of one policy
are much alike: suffix decoding, Oliaro et al., 2024). How often such guesses came true says how far to go on.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

_ENDINGS = (4, 3, 2, 1)  # tokens of a text's end that are looked for, the longest first
_AHEAD = 16  # tokens that are guessed at a time
_KEPT = 2**18  # endings, some 30 MB
_SHARE, _HALFWAY = 0.45, 15  # of guesses that must come true among many requests; half of that among so many


class Guess(NamedTuple):
    """All but the token say of what kind it is; kinds are judged apart."""

    token: int
    ending: int  # how many tokens it follows that it followed before
    own: bool  # in the text itself
    ahead: int  # guesses before it


class Guesses:
    """Learns from what is sampled. Texts have a character for each id, as Python finds strings in strings fast."""

    def __init__(self, stop_ids: Set[int]) -> None:
        self._stop_ids = stop_ids
        self._next: dict[str, str] = {}  # what last followed an ending
        self._judged: dict[tuple[int, bool, int], list[int]] = {}  # guesses of a kind: true ones, all

    def learn(self, text: str, sampled: int) -> None:
        """From so many tokens at the end of a text."""
        if len(self._next) > _KEPT:
            self._next.clear()
        for place in range(len(text) - sampled, len(text)):
            for length in _ENDINGS:
                self._next[text[place - length : place]] = text[place]

    def after(self, text: str, room: int, least: float) -> Sequence[Guess]:
        """At most so many next tokens, as long as all of them come true with at least that probability.

        One that ends a text is not guessed, since nothing is sampled after it.
        """
        guessed: list[Guess] = []
        probability = 1.0
        while len(guessed) < min(room, _AHEAD):
            guess = self._guess(text, len(guessed))
            if guess is None or guess.token in self._stop_ids:
                break
            true, of = self._judged.get(guess[1:], (1, 2))
            probability *= true / of
            if probability < least:
                break
            guessed.append(guess)
            text += chr(guess.token)
        return guessed

    def judge(self, guessed: Sequence[Guess], true: int) -> None:
        """The first so many came true. Those behind the first that did not say nothing."""
        for number, guess in enumerate(guessed[: true + 1]):
            counts = self._judged.setdefault(guess[1:], [1, 2])
            counts[0] += number < true
            counts[1] += 1

    def _guess(self, text: str, ahead: int) -> Guess | None:
        for length in _ENDINGS:
            ending = text[-length:]
            place = text.rfind(ending, 0, -1)
            if place >= 0:
                return Guess(ord(text[place + length]), length, True, ahead)
            if ending in self._next:
                return Guess(ord(self._next[ending]), length, False, ahead)
        return None


def worth(requests: int) -> float:
    """The probability from which on a guess costs less than it wins, in a pass of so many requests.

    Among more of them a token costs a greater part of what the pass costs.
    """
    return _SHARE * requests / (requests + _HALFWAY)
