"""What of a recipe cannot stand together: each mistake is a ValueError of one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from turnwise.components import COMPONENTS, Component

if TYPE_CHECKING:
    from turnwise.config import Config
    from turnwise.protocols import Advantage


def check(config: Config) -> None:
    """All that concerns keys of several groups."""
    minibatches_divide(config)
    tasks_have_slots(config)
    parts_can_be_made(config)
    samples_are_seen(config)
    secrets_are_known(config)
    critic_is_needed(config)


def minibatches_divide(config: Config) -> None:
    """A batch of turns holds whole minibatches."""
    rollout = config.rollout
    turns = rollout.n_env * rollout.e_len
    if rollout.episodes is None and config.update.minibatch > turns:
        raise ValueError(
            f"update.minibatch is {config.update.minibatch}, larger than the batch of {turns} turns "
            f"(rollout.n_env x rollout.e_len); make it {turns} or less"
        )
    if rollout.episodes is None and turns % config.update.minibatch:
        size = next(size for size in range(config.update.minibatch, 0, -1) if turns % size == 0)
        raise ValueError(
            f"update.minibatch={config.update.minibatch} does not divide the batch of {turns} turns "
            f"(rollout.n_env x rollout.e_len) evenly; make it {size}"
        )


def tasks_have_slots(config: Config) -> None:
    """Each task is played by as many slots as its share says."""
    rollout = config.rollout
    if len(config.deal) > rollout.n_env // rollout.group:
        groups = f" in groups of rollout.group={rollout.group}" if rollout.group > 1 else ""
        shares = f" with environment.shares of {len(config.deal)} in all" if config.environment.shares else ""
        raise ValueError(
            f"rollout.n_env={rollout.n_env} slots{groups} cannot hold {len(config.tasks)} tasks{shares}; "
            f"a {'group' if groups else 'slot'} plays one task"
        )


def parts_can_be_made(config: Config) -> None:
    """Those that plug in take the keys that they are given."""
    if config.agents and config.data is None:
        names = ", ".join(config.agents)
        raise ValueError(f"agents names {names} for samples to call, and there are none; set data.train")
    if config.agent.use == "gym":
        why = "agent.use is gym, whose prompts are written anew in each turn; leave it out"
        refuse_idle("rollout", config.rollout, ("token_check",), why)
    has_members(config.memory, "memory", ("span", "prompt"))
    has_members(config.parser, "parser", ("cue", "parse", "format"), actions=["left", "right"], default="left")
    config.engine.find("engine")
    for tracker in config.log.trackers:
        tracker.find("log.trackers")
    if config.reward is not None:
        if config.data is None:
            raise ValueError(f"reward.use={config.reward.use} scores samples, and there are none; set data.train")
        config.reward.bind("reward")


def has_members(part: Component, kind: str, members: Sequence[str], **given: Any) -> None:
    """The part, made with what the framework gives, has what is asked of its kind."""
    made = part.make(kind, **given)
    if lacking := [name for name in members if not hasattr(made, name)]:
        raise ValueError(f"{kind}.use is {part.use!r}, which has no {' and no '.join(lacking)}; see turnwise.protocols")


def samples_are_seen(config: Config) -> None:
    """Where there is data, agents play its samples, and nothing is set that only an environment's agent heeds."""
    if config.data is None:
        return
    agents = config.every_agent
    if config.environment.shares:
        raise ValueError("environment.shares does nothing where samples are played; leave it out, or data.train")
    for key, one in agents.items():
        if one.use == "gym":
            raise ValueError(
                f"{key}.use is gym, which plays the environment and would never see the samples of data; "
                f"set another, such as {key}.use=tool"
            )
        if one.use == "single_turn" and config.reward is None:
            raise ValueError(f"{key}.use=single_turn earns nothing without a reward; set reward.use")
    if any(one.use not in COMPONENTS["agent"] for one in agents.values()):
        return  # it may heed anything
    if idle := _idle_beside_samples(config):
        raise ValueError(
            f"{idle[0]} does nothing where samples are played; leave it out, or take a recipe that plays samples, "
            "such as gsm8k-tool"
        )
    if config.rollout.max_episode_turns is not None:
        raise ValueError(
            f"rollout.max_episode_turns={config.rollout.max_episode_turns} does nothing where samples are played; "
            "leave it out, or see agent.max_turns"
        )


def secrets_are_known(config: Config) -> None:
    """Where there are secrets, they are the arguments of tools that we run."""
    for key, one in config.every_agent.items():
        graph = one.use == "langgraph" and one.arguments.get("graph") and not one.arguments.get("tools")
        if config.log.redact and (graph or one.use == "openai"):
            raise ValueError(
                f"log.redact={config.log.redact} names arguments of tools, and those of {key}.use={one.use} are run "
                "where nobody sees them; leave log.redact out, or log.traces"
            )


def critic_is_needed(config: Config) -> None:
    """The estimator has the critic that it reads, and without one nothing is set that only a critic heeds."""
    use = config.advantage.use
    estimator: Advantage = config.advantage.make("advantage")
    if not all(isinstance(getattr(estimator, name, None), bool) for name in ("critic", "groups", "whiten")):
        raise ValueError(
            f"advantage.use is {use!r}, which does not say what it needs; give it the class attributes "
            "critic, groups and whiten, each True or False"
        )
    if not callable(estimator):
        raise ValueError(f"advantage.use is {use!r}, which cannot be called with streams; give it a __call__")
    if estimator.critic and config.model.critic == "none":
        raise ValueError(
            f"advantage.use={use} reads values, which model.critic=none does not have; "
            "set model.critic=separate, or an estimator without a critic such as advantage.use=grpo"
        )
    if not estimator.critic and config.model.critic != "none":
        raise ValueError(
            f"model.critic={config.model.critic} would learn nothing from advantage.use={use}; set model.critic=none"
        )
    if not estimator.critic and config.rollout.episodes is None:
        raise ValueError(f"advantage.use={use} compares whole episodes; set rollout.episodes=1")
    if estimator.groups and config.rollout.group == 1:
        raise ValueError(
            f"advantage.use={use} compares episodes of the same level, and rollout.group=1 plays each level once, "
            "so nothing would be learned; set rollout.group=8"
        )
    whitened = estimator.whiten if config.update.whiten is None else config.update.whiten
    scaled = [
        *(["advantage.divide_by_std"] if getattr(estimator, "divide_by_std", False) else []),
        *(["update.whiten"] if estimator.groups and whitened else []),
    ]
    if scaled and config.kl.reward:
        raise ValueError(
            f"kl.reward={config.kl.reward} is part of the returns whose spread advantage.use={use} divides by: where "
            "episodes tie it would be all there is, at full size; set kl.reward=0 and, say, kl.loss=0.001, or "
            f"{' and '.join(f'{key}=false' for key in scaled)}"
        )
    if config.model.critic == "none":
        why = "model.critic is none; leave out what a critic alone heeds"
        refuse_idle(
            "update", config.update, ("critic_lr", "value_clip", "value_coefficient", "first_token_weight"), why
        )
        on = ("w_epoch",) if config.warmup.w_epoch else ()  # 0 is what it is
        refuse_idle("warmup", config.warmup, ("w_iter", "w_frac", "tolerance", *on), why)


def refuse_idle(name: str, group: BaseModel, keys: Sequence[str], why: str) -> None:
    """A ValueError where some of these keys are set, other than by default: nobody heeds them while `why`."""
    defaults = {key: type(group).model_fields[key].default for key in keys}
    idle = [key for key, default in defaults.items() if getattr(group, key) != default]
    if idle:
        told = ", ".join(f"{name}.{key}={getattr(group, key)}" for key in idle)
        meant = ", ".join("null" if defaults[key] is None else str(defaults[key]) for key in idle)
        do, are = ("do", "defaults are") if len(idle) > 1 else ("does", "default is")
        raise ValueError(f"{told} {do} nothing while {why} (the {are} {meant})")


def _idle_beside_samples(config: Config) -> list[str]:
    """What is set, other than by default, and heeded by no agent that ships and plays samples."""
    parts = [
        f"{kind}.{key}={value}"
        for kind, part in (("memory", config.memory), ("parser", config.parser))
        if part != type(config).model_fields[kind].default
        for key, value in (part.arguments or {"use": part.use}).items()
    ]
    environment = config.environment
    default = type(environment)()
    keys = [key for key in type(environment).model_fields if key != "max_failures"]
    changed = [key for key in keys if getattr(environment, key) != getattr(default, key)]
    return [*parts, *(f"environment.{key}={getattr(environment, key)}" for key in changed)]
