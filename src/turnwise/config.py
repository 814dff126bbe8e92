"""What a run can vary: every key, its default and its unit. Recipes are YAML files with these keys.

Defaults are those of the Verlog report unless the comment says otherwise.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

# Short names for what ships; anything else is named `module:attribute`.
COMPONENTS = {
    "memory": {
        "window": "turnwise.memory.window:Window",
        "full": "turnwise.memory.full:Full",
        "note": "turnwise.memory.note:Note",
    },
    "parser": {"think_act": "turnwise.parse:ThinkAct"},
    "engine": {
        "local": "turnwise.engines.make:local",
        "vllm": "turnwise.engines.make:vllm",
        "sglang": "turnwise.engines.make:sglang",
    },
    "advantage": {
        "dual_gae": "turnwise.advantages.gae:DualGAE",
        "gae": "turnwise.advantages.gae:token_gae",
        "monte_carlo": "turnwise.advantages.gae:monte_carlo",
        "bi_level_gae": "turnwise.advantages.bilevel:BiLevelGAE",
    },
}
# Arguments that the framework passes by itself.
_GIVEN = {"parser": {"actions", "default"}, "engine": {"trained"}}


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers: 1e-5 is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class Component(BaseModel):
    """A part that plugs in: `use` names it, the other keys are its arguments."""

    model_config = ConfigDict(extra="allow")

    use: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def make(self, kind: str, **given: Any) -> Any:
        """Build the part; `given` is what the framework adds."""
        factory = self.find(kind)
        try:
            return factory(**self.arguments, **given)
        except TypeError as error:
            raise ValueError(f"{kind}: {self.use} cannot be made of {self.arguments}: {error}") from error

    def find(self, kind: str) -> Callable[..., Any]:
        """What makes the part; it has every argument that is given here."""
        factory = load_object(f"{kind}.use", COMPONENTS[kind].get(self.use, self.use), COMPONENTS[kind])
        if not callable(factory):
            raise ValueError(f"{kind}.use is {self.use!r}, which is no class")
        allowed = inspect.signature(factory).parameters
        for key in self.arguments:
            if key not in allowed or key in _GIVEN.get(kind, ()):
                raise ValueError(f"unknown key {kind}.{key}{nearest(key, set(allowed) - _GIVEN.get(kind, set()))}")
        return factory


class ModelConfig(_Strict):
    path: str = "tiny"  # a Hugging Face id, a folder, or "tiny": the embedded model
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of products; weights are fp32. auto: bf16 where it is faster
    device: str = "auto"
    critic: Literal["separate", "shared"] = "separate"  # shared: a value head on the actor's trunk


class EnvironmentConfig(_Strict):
    id: str = "turnwise.envs.babyai:BabyAIText"  # `module:Class`, or a registered Gymnasium id
    kwargs: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}  # name -> further kwargs; slots are dealt the tasks in turn
    instructions: str = ""  # the system message, where the environment has none
    actions: list[str] = []  # legal action texts, where the environment does not list them
    default_action: str = ""  # played instead of an invalid one, where the environment names none
    reward: Literal["binary", "native"] = "binary"  # binary: 1 where the episode ends in success, else 0
    invalid_penalty: float = Field(default=0.1, ge=0)  # subtracted from the reward of an invalid turn
    workers: Literal["inline", "thread", "process"] = "thread"  # inline: in the collector's own thread
    processes: PositiveInt | None = None  # child processes that the slots share; null: as many as there are cores
    timeout_s: float = Field(default=60.0, gt=0)  # of one call, in a thread or a process
    max_failures: PositiveInt = 10  # of one slot by its own fault, with no turns kept between them, that end the run

    @model_validator(mode="after")
    def _default_tasks(self) -> EnvironmentConfig:
        if not self.tasks:
            self.tasks = {self.id.rpartition(":")[2]: {}}
        return self

    @model_validator(mode="after")
    def _processes_need_workers(self) -> EnvironmentConfig:
        if self.processes is not None and self.workers != "process":
            raise ValueError(
                f"environment.processes={self.processes} does nothing while environment.workers is {self.workers}; "
                "set environment.workers=process"
            )
        return self


class RolloutConfig(_Strict):
    n_env: PositiveInt = 32  # environments that live side by side
    e_len: PositiveInt = 8  # turns of each in a batch
    mode: Literal["async", "lockstep"] = "async"
    max_episode_turns: PositiveInt | None = None  # then an episode is truncated, in training alone; null: never
    max_prompt_tokens: PositiveInt = 1024  # older turns are left out of a longer prompt
    max_reply_tokens: PositiveInt = 512
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)  # 0: off


class KLConfig(_Strict):
    reward: float = Field(default=1e-3, ge=0)  # k1 on every sampled token, subtracted from its reward
    loss: float = Field(default=0.0, ge=0)  # k3 as a term of the loss
    schedule: Literal["fixed", "adaptive"] = "fixed"  # adaptive: `reward` follows `target` (arXiv:1909.08593)
    target: float = Field(default=0.1, gt=0)  # nats a token
    horizon: PositiveInt = 10_000  # turns over which an adaptive coefficient can change by a tenth of the error

    @model_validator(mode="after")
    def _adaptive_needs_a_start(self) -> KLConfig:
        if self.schedule == "adaptive" and not self.reward:
            raise ValueError("kl.schedule=adaptive does nothing while kl.reward is 0; give it a start such as 0.001")
        return self


class UpdateConfig(_Strict):
    actor_lr: float = Field(default=1e-6, gt=0)
    critic_lr: float = Field(default=1e-5, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_steps: int = Field(default=0, ge=0)  # optimizer steps
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float | None = Field(default=1.0, gt=0)
    minibatch: PositiveInt = 128  # turns an optimizer step
    epochs: PositiveInt = 1
    micro_tokens: PositiveInt = 8192  # tokens of a forward pass, padding included; changes speed and memory alone
    clip: float = Field(default=0.2, gt=0, lt=1)
    dual_clip: float | None = Field(default=3.0, gt=1)
    value_clip: float | None = Field(default=0.5, gt=0)
    value_coefficient: float = Field(default=1.0, gt=0)  # weighs the critic's loss; matters where the trunk is shared
    first_token_weight: float = Field(default=3.0, gt=0)  # in the critic's loss; the turn before bootstraps from it
    entropy: float = Field(default=1e-3, ge=0)
    whiten: bool = True  # advantages, over the sampled tokens of the whole batch
    gradient_checkpointing: bool = False


class WarmupConfig(_Strict):
    w_epoch: int = Field(default=40, ge=0)  # batches collected with the actor frozen; 0: no warm-up
    w_iter: PositiveInt = 5  # times that all of it is credited anew and part of it trained on
    w_frac: float = Field(default=0.1, gt=0, le=1)  # that part
    tolerance: float = Field(default=0.01, ge=0)  # stop when the critic's loss falls by less than this share; 0: never


class EvaluationConfig(_Strict):
    episodes: PositiveInt = 200  # a task
    slots: PositiveInt = 64  # played side by side
    temperature: float = Field(default=1.0, ge=0)  # 0: greedy


class LogConfig(_Strict):
    trackers: list[Literal["tensorboard"]] = []  # besides metrics.jsonl, which is always written
    transcript_every: PositiveInt = 50  # episodes


class CheckpointConfig(_Strict):
    every: PositiveInt = 1  # steps; a crash loses no more than these
    keep: PositiveInt = 2


class Config(_Strict):
    run: str = ""  # folder of the run; empty: runs/ and the recipe's name
    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=300, ge=0)  # batches to train on
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    memory: Component = Component(use="window")
    parser: Component = Component(use="think_act")
    engine: Component = Component(use="local")  # where tokens are sampled: docs/servers.md
    advantage: Component = Component(use="dual_gae")
    rollout: RolloutConfig = RolloutConfig()
    kl: KLConfig = KLConfig()
    update: UpdateConfig = UpdateConfig()
    warmup: WarmupConfig = WarmupConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_components(cls, tree: Any) -> Any:
        """Arguments without `use` are those of the default component."""
        given = {kind: tree[kind] for kind in COMPONENTS if isinstance(tree.get(kind), Mapping)}
        return {**tree, **{k: {"use": cls.model_fields[k].default.use, **v} for k, v in given.items()}}

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        turns = self.rollout.n_env * self.rollout.e_len
        if self.update.minibatch > turns:
            raise ValueError(
                f"update.minibatch is {self.update.minibatch}, larger than the batch of {turns} turns "
                f"(rollout.n_env x rollout.e_len); make it {turns} or less"
            )
        if turns % self.update.minibatch:
            raise ValueError(
                f"update.minibatch={self.update.minibatch} does not divide the batch of {turns} turns "
                "(rollout.n_env x rollout.e_len) evenly"
            )
        if len(self.environment.tasks) > self.rollout.n_env:
            raise ValueError(
                f"rollout.n_env={self.rollout.n_env} slots cannot hold {len(self.environment.tasks)} tasks; "
                "a slot plays one task"
            )
        self.memory.make("memory")
        self.advantage.make("advantage")
        self.parser.make("parser")
        self.engine.find("engine")
        return self


def load_config(recipe: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe (a path, or the name of a shipped one) and apply `dotted.key=value` overrides.

    Every mistake is a ValueError of one sentence.
    """
    path = find_shipped("recipe", recipe)
    tree = read_tree(path)
    override(tree, overrides)
    tree["run"] = tree.get("run") or f"runs/{path.stem}"
    return parse_config(tree)


def read_tree(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} must hold keys and values, such as `seed: 1`")
    return tree


def override(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each `dotted.key=value` in a tree of keys."""
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not an override; write it as dotted.key=value, such as update.epochs=2")
        _assign(tree, key, _scalar(text, value))


def parse_config(tree: Mapping[str, Any]) -> Config:
    """Validate a tree of keys; unknown keys are refused with the nearest valid one."""
    _refuse_unknown(tree, Config)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from error


def find_shipped(kind: Literal["recipe", "suite"], name: str | Path) -> Path:
    """A path as given, or what ships under a name."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = {file.stem: file for file in sorted((Path(__file__).parent / f"{kind}s").glob("*.yaml"))}
    if str(name) in shipped:
        return shipped[str(name)]
    raise ValueError(f"{kind} {str(name)!r} is neither a file nor a shipped {kind}{nearest(str(name), shipped)}")


def dump_config(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """`key was X, now is Y`, for each key that differs; where the run lies does not matter."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if path or key != "run"]
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}.{key}")]
    return [] if before == after else [f"{path[1:]} was {before!r}, now is {after!r}"]


def load_object(key: str, dotted: str, known: Mapping[str, str] = types.MappingProxyType({})) -> Any:
    """What `module:attribute` names."""
    module, colon, name = dotted.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{key} is {dotted!r}{nearest(dotted, known)}; write your own as module:Class")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ValueError(f"{key} is {dotted!r}, but {error}") from error
    except AttributeError as error:
        raise ValueError(f"{key} is {dotted!r}, but the module {module} has no {name}") from error


def nearest(word: str, known: Any) -> str:
    """What may have been meant, as the tail of a sentence."""
    close = difflib.get_close_matches(word, list(known), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ValueError(f"cannot set {dotted}: {parent} is a value, not a group of keys")
    tree[last] = value


def _scalar(override: str, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{override!r}: the value is not YAML") from error


def _refuse_unknown(tree: Mapping[str, Any], model: type[BaseModel], path: str = "") -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            raise ValueError(f"unknown key {path}{key}{nearest(str(key), model.model_fields)}")
        kind = field.annotation
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        if isinstance(kind, type) and issubclass(kind, _Strict):
            if not isinstance(value, Mapping):
                raise ValueError(f"{path}{key} is {value!r}; it is a group of keys: {', '.join(kind.model_fields)}")
            _refuse_unknown(value, kind, f"{path}{key}.")


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return message
    return f"{key} is {first['input']!r}; {message[0].lower()}{message[1:]}"
