"""An episode as its agent sees it."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from turnwise.failures import EpisodeFailure
from turnwise.figures import finite, shown
from turnwise.protocols import Resumable, Tell
from turnwise.traces import no_span
from turnwise.types import Generation, Sample, Turn

if TYPE_CHECKING:
    from turnwise.slot import Slot


# Passes of the loop in which a branch that is ahead of the others lets them be told again what they were told.
_PATIENCE = 100


@dataclass
class KnownReply:
    """A reply that was sampled, for an agent that asks for it again after an interruption."""

    digest: str  # of its prompt
    generation: Generation
    trained: bool = False  # a batch had its turn
    made: Annotated[Generation | None, Field(exclude=True)] = None  # of it, as a turn: an agent may shorten it


class SlotSession:
    """An episode as its agent sees it, on top of the slot."""

    def __init__(self, slot: Slot, known: Sequence[KnownReply]):
        """`known` are the replies that the episode got before it was interrupted: it gets them again."""
        self._slot = slot
        self._name, self._episode = slot.name, slot.episode
        self._sample = copy.deepcopy(slot.sample)  # others have it too: tools, users and scorers may use it up
        self._journals = not isinstance(slot.agent, Resumable)
        self._known: dict[str, deque[KnownReply]] = {}
        for reply in known:
            self._known.setdefault(reply.digest, deque()).append(reply)
        self._goes_on = any(reply.trained for reply in known)
        self._old: list[KnownReply] = []  # known ones whose turns an earlier batch had
        self._old_turns: set[int] = set()

    @property
    def name(self) -> str:
        return self._name

    @property
    def seed(self) -> int:
        return self._episode.seed

    @property
    def sample(self) -> Sample | None:
        return self._sample

    @property
    def turns(self) -> int:
        return self._episode.turns

    async def generate(self, prompt_ids: Sequence[int]) -> Generation:
        self._refuse_when_over()
        prompt = tuple(map(int, prompt_ids))
        if not self._journals:
            return await self._slot.generate(prompt)
        digest = _digest(prompt)
        for _ in range(_PATIENCE):
            if self._known.get(digest) or not any(self._known.values()):
                break
            await asyncio.sleep(0)
        if known := self._known.get(digest):
            return self._again(known.popleft())
        generation = await self._slot.generate(prompt)
        self._episode.journal.append(KnownReply(digest, generation))
        return generation

    def _again(self, reply: KnownReply) -> Generation:
        if reply.trained:
            self._old.append(reply)
        return reply.generation

    def record(self, turn: Turn) -> None:
        self._refuse_when_over()
        reward, prompt_ids = self._finite("reward", turn.reward), tuple(map(int, turn.prompt_ids))
        turn = replace(turn, reward=reward, prompt_ids=prompt_ids, action_tokens=int(turn.action_tokens))
        episode = self._slot.episode
        reply = self._reply_of(turn)
        if reply is not None:
            reply.made = turn.generation
        old = any(reply is one for one in self._old)
        if not old:
            self._slot.record(turn)
        elif not turn.of_memory:
            self._old_turns.add(episode.turns)
        episode.turns += not turn.of_memory
        episode.episode_return += turn.reward

    def _reply_of(self, turn: Turn) -> KnownReply | None:
        """What the turn was made of."""
        journal = self._episode.journal
        same = (reply for reply in journal if reply.generation is turn.generation)
        if (found := next(same, None)) is not None or not journal:
            return found
        digest = _digest(turn.prompt_ids)
        alike = (reply for reply in journal if reply.digest == digest and turn.generation.begins(reply.generation))
        return next(alike, None)

    def reward(self, amount: float, turn: int | None = None) -> None:
        self._refuse_when_over()
        episode = self._slot.episode
        number = episode.turns - 1 if turn is None else turn
        amount = self._finite("reward", amount)
        if not amount:
            return
        if not 0 <= number < episode.turns:
            raise EpisodeFailure(f"{self.name} has no turn {number} to reward: there were {episode.turns} so far")
        if number not in self._old_turns:
            self._slot.reward(amount, number)
        episode.episode_return += amount

    def _refuse_when_over(self) -> None:
        """A branch of an agent may outlive its episode, and must not play in the next one."""
        if self._slot.episode is not self._episode:
            raise EpisodeFailure("the episode is over")

    def _finite(self, what: str, given: float) -> float:
        """It as a float: checkpoints and traces take no numbers of NumPy's."""
        amount = finite(given)
        if amount is None:
            told = shown(given)
            raise EpisodeFailure(f"the agent of {self.name} gave a {what} of {told}; it must be a finite number")
        return amount

    def count(self, name: str, amount: float = 1.0) -> None:
        figures = self._episode.figures
        figures[name] = figures.get(name, 0.0) + self._finite(f"figure {name!r}", amount)

    def shortened(self) -> None:
        self._slot.tally.shortened_prompts += 1

    def write(self, text: str) -> None:
        if self._episode.transcript is not None:
            self._episode.transcript.append(text)

    def span(self, kind: str, name: str, inputs: Any) -> AbstractContextManager[Tell]:
        recording = self._episode.recording
        again = self.turns - 1 in self._old_turns if self.turns else self._goes_on
        if recording is None or again:  # what happens again has been recorded
            return no_span(kind, name, inputs)
        return recording.span(kind, name, inputs)


def _digest(prompt: Sequence[int]) -> str:
    return hashlib.blake2b(" ".join(map(str, prompt)).encode(), digest_size=12).hexdigest()
