"""Plays the episodes of a probe, and measures them."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean

from turnwise.components import COMPONENTS, Component
from turnwise.config import Config
from turnwise.envs.checked import try_environment
from turnwise.episodes import Record
from turnwise.evaluate import evaluate, play_held_out
from turnwise.memory.window import Window
from turnwise.players import OTHERS, gym_of
from turnwise.probe.failures import Group, group_failures
from turnwise.probe.measure import Lengths, Score, Sheet, lengths, played, pooled, sheet
from turnwise.probe.translations import InvalidText, invalid_texts
from turnwise.protocols import Codec, Engine
from turnwise.slot import Slot
from turnwise.types import Message, Segment, Turn

EPISODES, IN_ALL = 20, 40  # of a task; of a recipe, whose tasks share the answer: 40 tell a half to within 15 points
MEMORIES = (1, 2, 4, 8, 16, 32)  # turns, the report's
RENDERED = 400  # turns at most whose prompt is rendered for each memory, spread evenly over all
TEXTS = 12  # invalid texts that are listed
ALL = "all tasks"


@dataclass(frozen=True)
class MemoryFigures:
    """A window of so many turns."""

    turns: int
    prompts: Lengths  # without regard to the limit; rendered from the recipe's own episodes where it was not played
    shortened: float | None  # share of turns that the limit took history from; None: not played
    sheets: tuple[Sheet, ...]  # all tasks together, then each; empty: not played


@dataclass(frozen=True)
class Probe:
    """One recipe, probed."""

    recipe: str
    model: str
    config: Config
    sheets: tuple[Sheet, ...]  # all tasks together, then each
    rivals: dict[str, tuple[Score, ...]]  # random and expert, where there are such; like `sheets`
    texts: tuple[InvalidText, ...]
    failures: tuple[Group, ...]
    prompts: Lengths  # as they were played
    shortened: float
    memories: tuple[MemoryFigures, ...]
    seconds: float


class Plan:
    """What is to be played: the recipe as it is, then with a window of each of `memories` turns."""

    def __init__(self, recipe: str, config: Config, memories: Sequence[int] = (), whole: bool = False):
        """`whole`: as many episodes as the configuration says, not as a probe needs.

        Makes every environment and memory once, so that mistakes are told before anything is played.
        """
        if config.data is not None:
            raise ValueError(f"a probe plays an environment, but {recipe} has rows of data; use turnwise eval")
        if config.agent.use != "gym":
            raise ValueError(
                f"a probe knows the turns of agent.use=gym alone, but {recipe} has {config.agent.use}; "
                "use turnwise eval"
            )
        tasks = config.environment.tasks
        if not whole:
            fewer = config.evaluation.model_copy(update={"episodes": max(1, min(EPISODES, IN_ALL // len(tasks)))})
            config = config.model_copy(update={"evaluation": fewer})
        self.recipe, self.config = recipe, config
        self.swept = bool(memories)
        self.memories = {turns: _window(config, turns) for turns in sorted(set(memories or MEMORIES))}
        for task in tasks:
            try_environment(config.environment, task)

    @property
    def own(self) -> object:
        return self.config.memory.make("memory")

    @property
    def episodes(self) -> int:
        """Of the model, in all."""
        further = sum(component.make("memory") != self.own for component in self.memories.values()) if self.swept else 0
        return self.config.evaluation.episodes * len(self.config.environment.tasks) * (1 + further)


def probe(plan: Plan, engine: Engine, renderer: Codec, finished: Callable[[], object] = lambda: None) -> Probe:
    """Play the plan and measure it; `finished` hears of each episode of the model."""
    began = time.monotonic()
    config = plan.config
    players = {name: invite(config) for name, invite in OTHERS.items()}
    records = {name: evaluate(config, player) for name, player in players.items() if player}
    slots = play_held_out(config, engine, renderer, finished)
    sweep = dict.fromkeys(plan.memories, slots)
    for turns, component in plan.memories.items():
        if plan.swept and component.make("memory") != plan.own:
            sweep[turns] = play_held_out(config.model_copy(update={"memory": component}), engine, renderer, finished)
    told = _told([slots, *sweep.values()], [one for played in records.values() for one in played])
    episodes = _episodes(slots, told)
    memories = []
    for turns, component in plan.memories.items():
        again = _episodes(sweep[turns], told)
        prompts = prompt_lengths(again, component.make("memory"), renderer)
        measured = (_shortened(sweep[turns]), _sheets(again, config)) if plan.swept else (None, ())
        memories.append(MemoryFigures(turns, prompts, *measured))
    actions = list(dict.fromkeys(action for slot in slots for action in gym_of(slot).host.offer.actions))
    return Probe(
        plan.recipe,
        config.model.path,
        config,
        _sheets(episodes, config),
        {name: _scores(played, config, told) for name, played in records.items()},
        tuple(invalid_texts(episodes, actions, TEXTS)),
        tuple(group_failures(episodes)),
        lengths([len(turn.prompt_ids) for episode in episodes for turn in episode.turns]),
        _shortened(slots),
        tuple(memories),
        time.monotonic() - began,
    )


def _window(config: Config, turns: int) -> Component:
    """A window of so many turns; the rest as the recipe's own window has it."""
    known = COMPONENTS["memory"]
    own = known.get(config.memory.use, config.memory.use) == known["window"]
    component = Component(use="window", **{**(config.memory.arguments if own else {}), "turns": turns})
    component.make("memory")  # a mistake is told now
    return component


def prompt_lengths(episodes: Sequence[Segment], memory: Window, renderer: Codec) -> Lengths:
    """Of the prompts that this memory would have made in these episodes."""
    places = [(episode, place) for episode in map(played, episodes) for place in range(len(episode))]
    every = math.ceil(len(places) / RENDERED)

    async def rendered(episode: list[Turn], place: int) -> int:
        past = episode[max(0, place - memory.span) : place]
        messages = await memory.prompt(past, place, episode[place].observation, _nobody)
        return len(renderer.prompt(messages))

    async def all_of_them() -> list[int]:
        return [await rendered(*place) for place in places[::every]]

    return lengths(asyncio.run(all_of_them()))


async def _nobody(messages: list[Message]) -> str:
    raise AssertionError("a window asks nothing")


def _told(plays: Sequence[Sequence[Slot]], records: Sequence[Record]) -> set[str]:
    """The tasks in which success is told of some episodes, whoever played them."""
    outcomes = [(one.task, one.outcome) for slots in plays for slot in slots for one in slot.share.segments]
    return {
        task
        for task, outcome in [*outcomes, *((r.task, r) for r in records)]
        if outcome and outcome.success is not None
    }


def _episodes(slots: Sequence[Slot], told: Set[str]) -> list[Segment]:
    """Where success in a task is told of some, the others had none."""
    return [_judged(segment) if segment.task in told else segment for slot in slots for segment in slot.share.segments]


def _judged(episode: Segment) -> Segment:
    assert episode.outcome is not None
    return replace(episode, outcome=replace(episode.outcome, success=bool(episode.outcome.success)))


def _shortened(slots: Sequence[Slot]) -> float:
    """Of all turns that were played, those of dropped episodes too."""
    kept = sum(len(played(segment)) for slot in slots for segment in slot.share.segments)
    turns = kept + sum(slot.tally.dropped_turns for slot in slots)
    return sum(slot.tally.shortened_prompts for slot in slots) / turns


def _sheets(episodes: Sequence[Segment], config: Config) -> tuple[Sheet, ...]:
    by_task = [(task, [one for one in episodes if one.task == task]) for task in config.environment.tasks]
    return (sheet(ALL, episodes), *(sheet(task, own) for task, own in by_task))


def _scores(records: Sequence[Record], config: Config, told: Set[str]) -> tuple[Score, ...]:
    scores = [_score(task, [one for one in records if one.task == task], told) for task in config.environment.tasks]
    return (pooled(scores, ALL), *scores)


def _score(task: str, records: Sequence[Record], told: Set[str]) -> Score:
    successes = sum(bool(record.success) for record in records) if task in told else None
    returns, turns = (fmean(one) for one in zip(*((r.episode_return, r.turns) for r in records), strict=True))
    return Score(task, len(records), successes, returns, turns)
