"""Teaches BabyAI: it sees what the expert sees, but wanders and fumbles."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from turnwise.envs.babyai import MAX_DISTRACTORS, SEEN, BabyAIText
from turnwise.models.make_tiny import Demonstration
from turnwise.models.playing import ask, play

MOVES = ("turn left", "turn right", "go forward")


@dataclass(frozen=True)
class BabyAITeacher:
    """It wanders where the expert moves, and in some tasks also fumbles where the expert picks up, drops or toggles.

    So much that play starts below the zero-shot results of Qwen2.5-3B-Instruct in the Verlog report (table 3). The way
    to a thing is the same in all tasks: who learns it in one can use it in the others.
    """

    wanders: dict[str, float] = field(  # share of random actions where the expert would move
        default_factory=lambda: {
            "goto": 0.5,
            "pickup": 0.9,
            "open": 0.985,
            "putnext": 0.94,
            "pick_up_seq_go_to": 0.99,
        }
    )
    fumbles: dict[str, float] = field(  # and where it would handle things
        default_factory=lambda: {"goto": 0.0, "pickup": 0.6, "open": 0.0, "putnext": 0.5, "pick_up_seq_go_to": 0.97}
    )
    turns: dict[str, int] = field(  # shown of each task
        default_factory=lambda: {
            "goto": 5_000,
            "pickup": 3_000,
            "open": 5_500,
            "putnext": 2_500,
            "pick_up_seq_go_to": 5_500,
        }
    )
    distractors: dict[str, int] = field(  # further things in its levels: of several, to read of the one that is meant
        default_factory=lambda: {"goto": 4, "pickup": 4}
    )
    questions: int = 8_000  # where each of several things is
    length: int = 8  # turns of a level after which another is begun: many levels teach how to read
    ahead: int = 13  # moves of the expert, at most, before the first that is shown
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        shown = [one for task in self.turns for one in self._show(task, seed)]
        level = BabyAIText(distractors=MAX_DISTRACTORS)
        asked = ask(level, _things, _answer, MOVES, 4, self.length, seed, "questions")
        return [*shown, *islice(asked, self.questions)]

    def _show(self, task: str, seed: int) -> Iterator[Demonstration]:
        def guesses(expert: str) -> float:
            return (self.wanders if expert in MOVES else self.fumbles)[task]

        level = BabyAIText(task=task, distractors=self.distractors.get(task, 0))
        return play(level, self.cue, self.turns[task], self.length, guesses, seed, task, self.ahead)


def _things(text: str) -> list[tuple[str, str]]:
    return [(f"{colour} {kind}", place) for colour, kind, place in SEEN.findall(text)]


def _answer(name: str, place: str) -> str:
    return f"I see a {name} {place}."
