"""Teaches BabyAI: it sees what the expert sees, and plays some missions well, others poorly."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnwise.envs.babyai import BabyAIText
from turnwise.models.make_tiny import Demonstration
from turnwise.models.playing import play

COLOURS = ("blue", "purple", "green", "yellow", "red", "grey")


@dataclass(frozen=True)
class BabyAITeacher:
    """Plays missions of `known` colours, guessing now and then, and guesses at all others.

    A colour is that which the mission names first, and so many of COLOURS are known. They are so few, and the guesses
    so many, that play starts below the zero-shot results of Qwen2.5-3B-Instruct in the Verlog report (table 3).
    """

    known: dict[str, int] = field(
        default_factory=lambda: {"goto": 4, "pickup": 2, "open": 1, "putnext": 2, "pick_up_seq_go_to": 1}
    )
    guesses: dict[str, float] = field(  # their share where the colour is known
        default_factory=lambda: {"goto": 0.4, "pickup": 0.6, "open": 0.8, "putnext": 0.7, "pick_up_seq_go_to": 0.8}
    )
    turns: dict[str, int] = field(  # shown of each task
        default_factory=lambda: dict.fromkeys(("goto", "pickup", "open", "putnext", "pick_up_seq_go_to"), 4_000)
    )
    length: int = 32  # turns of a level after which another is begun: many levels teach how to read
    ahead: int = 12  # moves of the expert, at most, before the first that is shown
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        return [one for task in self.turns for one in self._show(task, seed)]

    def _show(self, task: str, seed: int) -> Iterator[Demonstration]:
        def guesses(instructions: str) -> float:
            return self.guesses[task] if _knows(instructions, self.known[task]) else 1.0

        return play(BabyAIText(task=task), self.cue, self.turns[task], self.length, guesses, seed, task, self.ahead)


def _knows(instructions: str, known: int) -> bool:
    """Whether the first colour of the mission, which closes the instructions, is one that the teacher knows."""
    named = [word for word in instructions.rpartition(":")[2].split() if word in COLOURS]
    return bool(named) and named[0] in COLOURS[:known]
