"""How good a player is: success on fixed held-out levels, with intervals, beside a random player and the expert."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.table import Table

from turnwise import checkpoint
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.envs.failures import EnvironmentFailure
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
from turnwise.metrics import wilson
from turnwise.models import arithmetic, open_model
from turnwise.protocols import Engine
from turnwise.render import Renderer
from turnwise.rollout import Slot, play_all
from turnwise.seeds import derive, episode_seed


@dataclass(frozen=True)
class Result:
    """One player on one task."""

    task: str
    successes: int | None  # None where the environment does not tell
    episodes: int
    mean_return: float  # native or binary, as the recipe says; penalties included
    mean_turns: float
    valid: float | None = None  # share of valid or translated actions; None for players that speak no text
    invalid_texts: tuple[tuple[str, int], ...] = ()
    failures: int = 0  # environments that failed, and whose episodes were replaced

    @property
    def rate(self) -> float | None:
        return None if self.successes is None else self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.successes is None else wilson(self.successes, self.episodes)

    def __str__(self) -> str:
        if self.rate is None or self.interval is None:
            return f"return {self.mean_return:.2f}"
        return f"{self.rate:.3f} [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"


def open_player(config: Config, run: Path | None) -> tuple[Engine, Renderer]:
    """The model of the configuration; with a run, as its newest checkpoint left it."""
    model, tokenizer = open_model(config.model)
    if run is not None:
        newest = checkpoint.newest(run / "checkpoints")
        if newest is None:
            raise ValueError(f"{run} has no checkpoint yet, so there is nothing to evaluate")
        tensors, _ = checkpoint.load(newest)
        actor = {name.removeprefix("actor."): tensor for name, tensor in tensors["policy"].items()}
        checkpoint.load_parameters(model, actor)
    renderer = Renderer(tokenizer)
    precision = arithmetic(config.model.precision, model.device)
    return LocalEngine(model, renderer.stop_ids, precision), renderer


def eval_seed(task: str, episode: int) -> int:
    """The same levels for every run, model and player; none of them occurs in training."""
    return episode_seed("eval", task, episode)


def evaluate_model(
    config: Config, engine: Engine, renderer: Renderer, finished: Callable[[], object] = lambda: None
) -> list[Result]:
    """Play `evaluation.episodes` held-out episodes of each task by the model; `finished` hears of each one."""
    slots = play_held_out(config, engine, renderer, finished)
    return [_result(task, [slot for slot in slots if slot.task == task]) for task in config.environment.tasks]


def play_held_out(
    config: Config, engine: Engine, renderer: Renderer, finished: Callable[[], object] = lambda: None
) -> list[Slot]:
    """The same, told turn by turn: each slot's `segments` are whole episodes."""
    evaluation = config.evaluation
    rollout = config.rollout.model_copy(update={"temperature": evaluation.temperature, "top_p": 1.0, "top_k": 0})
    config = config.model_copy(update={"rollout": rollout})
    tasks = list(config.environment.tasks)
    lanes = max(1, min(evaluation.slots // len(tasks), evaluation.episodes))

    async def play(slot: Slot) -> None:
        quota = len(range(slot.index, evaluation.episodes, lanes))
        done = 0
        while done < quota:
            await slot.turn(engine)
            if len(slot.segments) > done:
                done += 1
                finished()

    with closing(Workers(config.environment, len(tasks) * lanes)) as workers:
        slots = [
            Slot(lane, task, config, renderer, workers, partial(_lane_seed, task, lane, lanes))
            for task in tasks
            for lane in range(lanes)
        ]
        asyncio.run(play_all(play(slot) for slot in slots))
    return slots


def _lane_seed(task: str, lane: int, lanes: int, number: int) -> int:
    return eval_seed(task, lane + number * lanes)


def _result(task: str, slots: list[Slot]) -> Result:
    segments = [segment for slot in slots for segment in slot.segments]
    outcomes = [segment.outcome for segment in segments if segment.outcome]
    actions = [turn.action for segment in segments for turn in segment.turns if turn.action]
    invalid = Counter(action.said for action in actions if action.status == "invalid")
    return Result(
        task,
        _count([outcome.success for outcome in outcomes]),
        len(outcomes),
        sum(outcome.episode_return for outcome in outcomes) / len(outcomes),
        sum(outcome.turns for outcome in outcomes) / len(outcomes),
        1 - invalid.total() / len(actions),
        tuple(invalid.most_common(3)),
        sum(slot.tally.failures for slot in slots),
    )


def _count(verdicts: Sequence[bool | None]) -> int | None:
    return sum(bool(verdict) for verdict in verdicts) if any(verdict is not None for verdict in verdicts) else None


Choose = Callable[[], Awaitable[str]]


def evaluate_random(config: Config) -> list[Result] | None:
    """Play the same episodes by uniformly random legal actions; None where they are not listed."""

    def chooser(host: Host, seed: int) -> Choose:
        luck = random.Random(derive("random player", seed))

        async def choose() -> str:
            return luck.choice(host.offer.actions)

        return choose

    tasks = list(config.environment.tasks)
    if not _inline(config, tasks[0]).offer.actions:
        return None
    return [_play(config, task, chooser) for task in tasks]


def evaluate_expert(config: Config) -> list[Result] | None:
    """Play the same episodes by the environment's own expert; None where it has none."""

    def chooser(host: Host, seed: int) -> Choose:
        return host.expert

    tasks = list(config.environment.tasks)
    if not _inline(config, tasks[0]).offer.has_expert:
        return None
    return [_play(config, task, chooser) for task in tasks]


def _inline(config: Config, task: str) -> Host:
    """An environment for players that are cheaper than any worker."""
    environment = config.environment.model_copy(update={"workers": "inline", "processes": None})
    return Host(environment, task, "", Workers(environment, 1))


def _play(config: Config, task: str, chooser: Callable[[Host, int], Choose]) -> Result:
    async def play() -> tuple[list[tuple[bool | None, float, int]], int]:
        limit = config.environment.max_failures
        host = _inline(config, task)
        outcomes, episode, failed = [], 0, 0  # failures in a row
        while len(outcomes) < config.evaluation.episodes:
            try:
                outcomes.append(await play_one(host, eval_seed(task, episode)))
                failed = 0
            except EnvironmentFailure as failure:  # as with the model, another episode takes its place
                failed += 1
                if failed >= limit:
                    raise ValueError(f"{failure} ({failed} times in a row; see environment.max_failures)") from failure
                host.renew()
            episode += 1
        return outcomes, episode - len(outcomes)

    async def play_one(host: Host, seed: int) -> tuple[bool | None, float, int]:
        await host.reset(seed)
        choose = chooser(host, seed)
        total, turns, feedback = 0.0, 0, None
        while feedback is None or not (feedback.terminated or feedback.truncated):
            feedback = await host.step(await choose())
            total, turns = total + feedback.reward, turns + 1
        return feedback.success, total, turns

    outcomes, failures = asyncio.run(play())
    verdicts, returns, turns = zip(*outcomes, strict=True)
    episodes = len(outcomes)
    return Result(task, _count(verdicts), episodes, sum(returns) / episodes, sum(turns) / episodes, failures=failures)


def results_table(players: Mapping[str, Sequence[Result]], config: Config) -> Table:
    """A row a task, a column a player."""
    evaluation = config.evaluation
    table = Table(title=f"success over {evaluation.episodes} held-out episodes a task, 95% intervals")
    table.add_column("task")
    for player in players:
        table.add_column(player, justify="right")
    names = list(players)
    for results in zip(*players.values(), strict=True):
        table.add_row(results[0].task, *map(str, results))
    model = players[names[0]]
    said = sum((Counter(dict(r.invalid_texts)) for r in model), Counter[str]()).most_common(3)
    shares = ", ".join(f"{r.task} {r.valid:.3f}" for r in model)
    worst = "; most frequent invalid: " + ", ".join(f"{text!r} x{count}" for text, count in said) if said else ""
    table.caption = f"temperature {evaluation.temperature:g}; valid actions: {shares}{worst}"
    return table
