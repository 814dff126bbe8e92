"""Demonstrations by players that know better: they say what the expert sees, and often act at random."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from turnwise.memory.window import Window
from turnwise.models.make_tiny import Demonstration
from turnwise.parse import ThinkAct
from turnwise.seeds import derive, episode_seed
from turnwise.types import Action, Generation, Message, Observation, Turn


def play(
    environment: Any,
    cue: str,
    turns: int,
    length: int,
    guesses: Callable[[str], float],
    seed: int,
    task: str,
    ahead: int = 0,
    memories: Sequence[int] = (0, 1, 1, 1, 2),
    often: Sequence[str] = (),
) -> Iterator[Demonstration]:
    """So many turns, each with the prompt that a window memory of one of `memories` turns shows, drawn for each level.

    `environment` has `expert` and `thought`; `cue` is the answer format. A level is left after `length` turns: many
    levels teach how to read. Up to `ahead` moves of the expert, which nobody sees, come before: whoever guesses much
    would seldom show how a long level ends. `guesses` tells how often a random action is shown instead of the
    expert's, which it is given; those in `often` come four times as often as the others.
    """
    parser = ThinkAct(environment.actions, environment.default_action, cue=cue)
    rng = random.Random(derive("teacher", seed, task))
    guessed = [*environment.actions, *(3 * [*often])]
    episode = made = 0
    while made < turns:
        seen, _ = environment.reset(seed=episode_seed("demo", seed, task, episode))
        episode += 1
        ended = False
        for _ in range(rng.randint(0, ahead)):
            seen, _, terminated, truncated, _ = environment.step(environment.expert())
            ended = terminated or truncated
            if ended:
                break
        past: list[Turn] = []
        memory = Window(rng.choice(memories))
        while not ended and len(past) < length and made < turns:
            ask = "\n".join(part for part in (seen.get("cue", ""), parser.cue) if part)
            observation = Observation(seen["text"], ask, seen["instructions"])
            thought = environment.thought()
            expert = environment.expert()
            action = rng.choice(guessed) if rng.random() < guesses(expert) else expert
            reply = parser.format(thought, action)
            yield Demonstration(_window_messages(memory, past, observation), reply)
            made += 1
            past.append(_played(observation, reply, parser.parse(reply), parser.format("", action)))
            seen, _, terminated, truncated, _ = environment.step(action)
            ended = terminated or truncated


def ask(
    environment: Any,
    things: Callable[[str], Sequence[tuple[str, str]]],
    answer: Callable[[str, str], str],
    moves: Sequence[str],
    most: int,
    length: int,
    seed: int,
    task: str,
) -> Iterator[Demonstration]:
    """Questions for two to `most` of the things in sight, by names that only one of them has. They never end.

    Who finds a place by a name can tell two things apart. `things` reads names and places in what is seen, `answer`
    says them. A level is left after `length` random `moves`.
    """
    rng = random.Random(derive(task, seed))
    for episode in count():
        seen, _ = environment.reset(seed=episode_seed("demo", seed, task, episode))
        for _ in range(length):
            found = things(seen["text"])
            named = Counter(name for name, _ in found)
            alone = [(name, place) for name, place in found if named[name] == 1]
            asked = rng.sample(alone, min(most, len(alone)))
            if len(asked) > 1:
                question = f"Where? {', '.join(f'the {name}' for name, _ in asked)}"
                said = "\n".join(answer(name, place) for name, place in asked)
                yield Demonstration([{"role": "user", "content": f"{seen['text']}\n{question}"}], said)
            seen, _, terminated, truncated, _ = environment.step(rng.choice(moves))
            if terminated or truncated:
                break


def _window_messages(memory: Window, past: Sequence[Turn], observation: Observation) -> list[Message]:
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
