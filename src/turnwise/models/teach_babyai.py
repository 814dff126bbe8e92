"""Teaches BabyAI: it sees what the expert sees, and plays some missions well, others poorly."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from turnwise.envs.babyai import BabyAIText
from turnwise.memory.window import Window
from turnwise.models.make_tiny import Demonstration
from turnwise.parse import ThinkAct
from turnwise.seeds import derive, episode_seed
from turnwise.types import Action, Generation, Message, Observation, Turn

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
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        return [one for task in self.turns for one in self._show(task, seed)]

    def _show(self, task: str, seed: int) -> Iterator[Demonstration]:
        """Turns of a task, each with the prompt that a window memory of 0 to 2 turns shows."""
        environment = BabyAIText(task=task)
        parser = ThinkAct(environment.actions, environment.default_action, cue=self.cue)
        luck = random.Random(derive("teacher", seed, task))
        episode = made = 0
        while made < self.turns[task]:
            seen, _ = environment.reset(seed=episode_seed("demo", seed, task, episode))
            episode += 1
            past: list[Turn] = []
            memory = Window(luck.choice((0, 1, 1, 1, 2)))
            ended = False
            share = self.guesses[task] if _knows(seen["instructions"], self.known[task]) else 1.0
            while not ended and len(past) < self.length and made < self.turns[task]:
                observation = Observation(seen["text"], parser.cue, seen["instructions"])
                thought = environment.thought()
                expert = environment.expert()
                action = luck.choice(environment.actions) if luck.random() < share else expert
                reply = parser.format(thought, action)
                yield Demonstration(window_messages(memory, past, observation), reply)
                made += 1
                past.append(_played(observation, reply, parser.parse(reply), parser.format("", action)))
                seen, _, terminated, truncated, _ = environment.step(action)
                ended = terminated or truncated


def _knows(instructions: str, known: int) -> bool:
    """Whether the first colour of the mission, which closes the instructions, is one that the teacher knows."""
    named = [word for word in instructions.rpartition(":")[2].split() if word in COLOURS]
    return bool(named) and named[0] in COLOURS[:known]


def window_messages(memory: Window, past: Sequence[Turn], observation: Observation) -> list[Message]:
    """What the memory shows, without the ids that nobody sampled."""

    async def nobody(_: list[Message]) -> str:
        raise AssertionError("a window asks nothing")

    prompt = memory.prompt(past[len(past) - memory.turns :] if memory.turns else (), len(past), observation, nobody)
    try:
        prompt.send(None)
    except StopIteration as done:
        return [{"role": message["role"], "content": message["content"]} for message in done.value]
    raise AssertionError("a window waits for nothing")


def _played(observation: Observation, reply: str, action: Action, bare: str) -> Turn:
    return Turn(observation, (), Generation((), (), "stop", 0), action, 0, 0.0, reply, reply, bare)
