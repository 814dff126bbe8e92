"""Who plays held-out levels: a model, here or behind a server; chance; and the environment's own expert.

All of them sit in the slots that training plays in. Chance and expert answer by a choice instead of by a model.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise import checkpoint
from turnwise.agents.gym import Gym
from turnwise.agents.shared import Shared
from turnwise.components import Component
from turnwise.config import Config
from turnwise.engines.chat import ChatEngine, Conversation, is_address
from turnwise.engines.local import LocalEngine
from turnwise.envs.checked import Offer
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
from turnwise.lora import make_adapters
from turnwise.models import (
    arithmetic,
    ends_of,
    identity,
    open_model,
    pick_device,
    precision_on,
    refuse_other,
    refuse_too_long,
)
from turnwise.protocols import Codec, Engine
from turnwise.render import Renderer
from turnwise.seeds import derive
from turnwise.slot import Slot
from turnwise.types import Action, Generation, Sampling

if TYPE_CHECKING:
    from turnwise.evaluate import Course

Seat = tuple[Slot, Engine]
Choose = Callable[[Slot], Awaitable[str]]
Invite = Callable[[Config], "Player | None"]  # None: such a player cannot play there


class Player(Protocol):
    speaks: bool  # its actions are read from text

    def rules(self, config: Config) -> Config:
        """The configuration by which this player is judged."""
        ...

    def sit(self, config: Config, course: Course, shared: Shared) -> Seat:
        """A slot to play a course in, and who answers there."""
        ...


@dataclass(frozen=True)
class Model:
    """A language model."""

    engine: Engine
    codec: Codec
    speaks = True

    def rules(self, config: Config) -> Config:
        sampling = {"temperature": config.evaluation.temperature, "top_p": 1.0, "top_k": 0}
        config = _with(config, "rollout", **sampling, max_episode_turns=None)  # an episode is judged at its own end
        if isinstance(self.codec, Conversation):
            config = _with(config, "rollout", max_prompt_tokens=sys.maxsize)  # of bytes: the limit is the server's
        return config

    def sit(self, config: Config, course: Course, shared: Shared) -> Seat:
        about = (course.index, course.task, config, self.codec, shared, course.level)
        return Slot(*about, written=course.written, within="eval/"), self.engine


@dataclass(frozen=True)
class Chooser:
    """A player that chooses its actions with the environment at hand."""

    choose: Choose
    speaks = False

    def rules(self, config: Config) -> Config:
        config = _with(config, "rollout", max_prompt_tokens=sys.maxsize, max_episode_turns=None)  # it reads no prompt
        nothing = Component.model_validate({"use": "window", "turns": 0})
        return config.model_copy(update={"memory": nothing})

    def sit(self, config: Config, course: Course, shared: Shared) -> Seat:
        slot = Slot(course.index, course.task, config, Conversation(), shared, course.level)
        gym_of(slot).parser = _Verbatim()
        return slot, _Choices(slot, self.choose)


def random_player(config: Config) -> Player | None:
    """Uniformly random legal actions; None where they are not listed."""

    async def choose(slot: Slot) -> str:
        actions = gym_of(slot).host.offer.actions
        if not actions:
            raise ValueError(f"{slot.task} lists no actions, so nobody plays it at random")
        return actions[derive("random player", slot.episode.seed, slot.episode.turns) % len(actions)]

    offer = _offer(config)
    return Chooser(choose) if offer and offer.actions else None


def expert_player(config: Config) -> Player | None:
    """The environment's own expert; None where it has none."""
    offer = _offer(config)
    return Chooser(lambda slot: gym_of(slot).host.expert()) if offer and offer.has_expert else None


OTHERS: dict[str, Callable[[Config], Player | None]] = {
    "random": random_player,
    "expert": expert_player,
}  # who plays beside a model


def open_player(config: Config, trained: Path | None) -> tuple[Engine, Codec]:
    """The model that `model.path` names, here or at a server; as `trained`, a checkpoint, left it."""
    if is_address(config.model.path):
        if config.model.chat_template_kwargs:
            raise ValueError(f"model.chat_template_kwargs does nothing: {config.model.path} has a template of its own")
        return ChatEngine(config.model.path), Conversation()
    model, tokenizer = open_model(config.model)
    refuse_too_long(model, config.rollout)
    if trained is not None:
        tensors, state = checkpoint.load(trained, "policy")
        refuse_other(state["model"], identity(model, tokenizer), config.model.path, trained)
        make_adapters(model, config.model, config.seed)
        actor = {name.removeprefix("actor."): tensor for name, tensor in tensors["policy"].items()}
        checkpoint.load_parameters(model, actor)
    renderer = Renderer(tokenizer, config.rollout.history, config.model.chat_template_kwargs, ends_of(model))
    precision = arithmetic(config.model.precision, model.device)
    return LocalEngine(model, renderer.stop_ids, precision), renderer


def settled(config: Config) -> Config:
    """With the precision that this machine computes in, where the recipe leaves it to that."""
    return _with(config, "model", precision=precision_on(pick_device(config.model.device), config.model.precision))


def gym_of(slot: Slot) -> Gym:
    assert isinstance(slot.agent, Gym), "players other than models play environments alone"
    return slot.agent


def _with(config: Config, group: str, **keys: object) -> Config:
    """The same with other keys of one group."""
    return config.model_copy(update={group: getattr(config, group).model_copy(update=keys)})


def fingerprint(folder: Path) -> str:
    """Names the weights in a checkpoint or a model's folder, so that they are not taken for others; else empty."""
    digest = hashlib.blake2b(digest_size=8)
    weights = [file for file in folder.glob("*") if file.suffix in (".json", ".safetensors")]
    files = sorted(folder.glob("manifest.json")) or sorted(weights)  # a checkpoint's holds the digests of all others
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return f"{folder.name} {digest.hexdigest()}" if files else ""


def newest_of(run: Path) -> Path:
    """The newest checkpoint of a run."""
    newest = checkpoint.newest(run / "checkpoints")
    if newest is None:
        raise ValueError(f"{run} has no checkpoint yet, so there is nothing to evaluate")
    return newest


def _offer(config: Config) -> Offer | None:
    """What the environment offers to those who play it; None where samples are answered, or an own agent plays."""
    if config.data is not None or config.agent.use != "gym":
        return None
    with closing(Workers(config.environment, 1)) as workers:
        return Host(config.environment, next(iter(config.environment.tasks)), workers).offer


@dataclass(frozen=True)
class _Choices:
    """Stands in for an engine: the reply is the chosen action."""

    slot: Slot
    choose: Choose

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        return Generation(Conversation().reply(await self.choose(self.slot)), (), "stop", 0)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        raise ValueError("a player that chooses has no weights")


class _Verbatim:
    """An answer format without any: what is said is done."""

    cue = ""

    def parse(self, text: str) -> Action:
        return Action(text, "valid", text, "", 0)

    def format(self, thought: str, action: str) -> str:
        return action
