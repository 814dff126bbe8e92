"""Speculative decoding without a second model: draft tokens, so that one pass can read several of them.

Agents repeat what they have read, and what other agents said. So what followed an ending of a text follows it again: in
the text itself (prompt lookup decoding, Saxena, 2023), or else in what was sampled for others (rollouts of one policy
are much alike: suffix decoding, Oliaro et al., 2024). How often such drafts were accepted says how far to go on.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

_ENDINGS = (4, 3, 2, 1)  # tokens of a text's end that are looked for, the longest first
_AHEAD = 16  # draft tokens at a time
_KEPT = 2**18  # endings, some 30 MB
_SHARE, _HALFWAY = 0.45, 15  # of drafts that must be accepted among many requests; half of that among so many


class Draft(NamedTuple):
    """All but the token say of what kind it is; kinds are counted apart."""

    token: int
    ending: int  # how many tokens it follows that it followed before
    own: bool  # in the text itself
    ahead: int  # drafts before it


class Drafts:
    """Learns from what is sampled. Texts have a character for each id, as Python finds strings in strings fast."""

    def __init__(self, stop_ids: Set[int]) -> None:
        self._stop_ids = stop_ids
        self._next: dict[str, str] = {}  # what last followed an ending
        self._accepted: dict[tuple[int, bool, int], list[int]] = {}  # drafts of a kind: accepted ones, all

    def learn(self, text: str, sampled: int) -> None:
        """From so many tokens at the end of a text."""
        if len(self._next) > _KEPT:
            self._next.clear()
        for place in range(len(text) - sampled, len(text)):
            for length in _ENDINGS:
                self._next[text[place - length : place]] = text[place]

    def propose(self, text: str, room: int, least: float) -> Sequence[Draft]:
        """At most so many next tokens, as long as all of them are accepted with at least that probability.

        One that ends a text is not drafted, since nothing is sampled after it.
        """
        drafted: list[Draft] = []
        probability = 1.0
        while len(drafted) < min(room, _AHEAD):
            draft = self._draft(text, len(drafted))
            if draft is None or draft.token in self._stop_ids:
                break
            accepted, of = self._accepted.get(draft[1:], (1, 2))
            probability *= accepted / of
            if probability < least:
                break
            drafted.append(draft)
            text += chr(draft.token)
        return drafted

    def verified(self, drafted: Sequence[Draft], accepted: int) -> None:
        """The first so many were what was sampled. Those behind the first that was not say nothing."""
        for number, draft in enumerate(drafted[: accepted + 1]):
            counts = self._accepted.setdefault(draft[1:], [1, 2])
            counts[0] += number < accepted
            counts[1] += 1

    def _draft(self, text: str, ahead: int) -> Draft | None:
        for length in _ENDINGS:
            ending = text[-length:]
            place = text.rfind(ending, 0, -1)
            if place >= 0:
                return Draft(ord(text[place + length]), length, True, ahead)
            if ending in self._next:
                return Draft(ord(self._next[ending]), length, False, ahead)
        return None


def worth(requests: int) -> float:
    """The probability from which on a draft costs less than it wins, in a pass of so many requests.

    Among more of them a token costs a greater part of what the pass costs.
    """
    return _SHARE * requests / (requests + _HALFWAY)
