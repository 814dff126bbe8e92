"""A running note that the model keeps for itself: it is asked for a new one before each turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.memory.chat import asked, system
from turnwise.protocols import Ask
from turnwise.types import Message, Observation, Turn


@dataclass(frozen=True)
class Note:
    """Shows the note and the current observation, nothing else; the note is a turn, and is trained."""

    question: str = "Write down in a few words what you must remember."

    span = 1

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Ask) -> list[Message]:
        messages = system(observation)
        if not past:
            return [*messages, asked(observation)]
        last = past[-1]
        if last.of_memory:  # the run was interrupted between the note and the turn that it is for
            note = last.text
        else:
            before = next((turn.text for turn in reversed(past) if turn.of_memory), "nothing")
            event = f"Your note: {before}\n{last.observation.text}\nYou did: {last.shown_action}\n{self.question}"
            note = await ask([*messages, {"role": "user", "content": event}])
        return [*messages, asked(Observation(f"Your note: {note}\n{observation.text}", observation.cue))]
