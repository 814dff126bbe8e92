"""What a run can vary: every key, its default and its unit. Recipes are YAML files with these keys.

Defaults are those of the Verlog report unless the comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from turnwise import checks
from turnwise.components import COMPONENTS, Component, nearest


class Keys(BaseModel):
    """Keys that stand together; others are refused."""

    # Strict: true is no number, and 1 is not true.
    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


class RewardConfig(Component):
    """What scores a whole episode of a sample; the other keys are its own."""

    timeout_s: float = Field(default=30.0, gt=0)  # of one score


class LoRAConfig(Keys):
    rank: PositiveInt = 32
    alpha: float = Field(default=64.0, gt=0)  # what an adapter adds is scaled by alpha / rank
    targets: list[str] = []  # names of linear layers, such as q_proj; none: all but the head


class ModelConfig(Keys):
    path: str = "tiny"  # a Hugging Face id, a folder, or "tiny": the embedded model
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of products; weights are fp32. auto: bf16 where it is faster
    chat_template_kwargs: dict[str, Any] = {}  # what its chat template asks besides, such as enable_thinking: false
    device: str = "auto"  # cpu, cuda, cuda:1; auto: a GPU of CUDA, if there is one. mps is untried
    # shared: a value head on the actor's trunk; none: for estimators that compare episodes
    critic: Literal["separate", "shared", "none"] = "separate"
    lora: LoRAConfig | None = None  # adapters of actor and critic over one frozen trunk; null: all weights


class EnvironmentConfig(Keys):
    id: str = "turnwise.envs.babyai:BabyAIText"  # `module:Class`, or a registered Gymnasium id
    kwargs: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}  # name -> further kwargs; slots are dealt the tasks in turn
    shares: dict[str, PositiveInt] = {}  # of the slots that train; 2 gives a task twice as many as 1, the default
    instructions: str = ""  # the system message, where the environment has none
    actions: list[str] = []  # legal action texts, where the environment does not list them
    default_action: str = ""  # played instead of an invalid one, where the environment names none
    reward: Literal["binary", "native"] = "binary"  # binary: 1 where the episode ends in success, else 0
    invalid_penalty: float = Field(default=0.1, ge=0)  # subtracted from the reward of an invalid turn
    workers: Literal["inline", "thread", "process"] = "thread"  # inline: in the collector's own thread
    processes: PositiveInt | None = None  # child processes that the slots share; null: as many as there are cores
    timeout_s: float = Field(default=60.0, gt=0, le=1e6)  # of one call, in a thread or a process
    max_failures: PositiveInt = 10  # of one slot by its own fault, with no turns kept between them, that end the run

    @model_validator(mode="after")
    def _default_tasks(self) -> EnvironmentConfig:
        if not self.tasks:
            self.tasks = {self.id.rpartition(":")[2]: {}}
        return self

    @model_validator(mode="after")
    def _shares_are_of_tasks(self) -> EnvironmentConfig:
        for task in self.shares:
            if task not in self.tasks:
                raise ValueError(
                    f"environment.shares names {task}, which is not among environment.tasks{nearest(task, self.tasks)}"
                )
        return self

    @model_validator(mode="after")
    def _workers_heed(self) -> EnvironmentConfig:
        idle = {"inline": ["processes", "timeout_s"], "thread": ["processes"], "process": []}[self.workers]
        why = f"environment.workers is {self.workers}; set environment.workers=process"
        checks.refuse_idle("environment", self, idle, why)
        return self


class DataConfig(Keys):
    train: list[str] = []  # files, folders or patterns such as rows/train-*.parquet; one may stand alone
    test: list[str] = []  # none: `held_out` of the training rows
    generate: Component | None = None  # a class with `rows(split)`: rows that are made instead of read
    convert: Component | None = None  # a class whose call turns a row of another shape into one of ours
    prompt_key: str = "prompt"  # the column that holds the prompt
    held_out: float | None = Field(default=None, gt=0, lt=1)  # share of the prompts; null: 0.1, if there is no test
    max_samples: PositiveInt | None = None  # train on the first so many; null: on all

    @field_validator("train", "test", mode="before")
    @classmethod
    def _one_may_stand_alone(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def share_held_out(self) -> float | None:
        """Of the prompts of training rows; None where there are test rows."""
        return None if self.test or self.generate else 0.1 if self.held_out is None else self.held_out

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if bool(self.train) == (self.generate is not None):
            raise ValueError("data needs either data.train, which names files, or data.generate, which makes rows")
        if self.generate and self.test:
            raise ValueError("data.test does nothing beside data.generate, which makes test rows too; leave it out")
        if self.held_out is not None and (self.test or self.generate):
            raise ValueError(f"data.held_out={self.held_out} does nothing where there are test rows; leave it out")
        for kind, part in (("data.generate", self.generate), ("data.convert", self.convert)):
            if part is not None:
                part.make(kind)
        return self


class RolloutConfig(Keys):
    n_env: PositiveInt = 32  # environments that live side by side
    e_len: PositiveInt = 8  # turns of each in a batch; on the mean, where the mode is elastic
    episodes: PositiveInt | None = None  # so many whole episodes of each in a batch instead, however long they are
    group: PositiveInt = 1  # so many neighbours play the same levels, to be compared with one another
    filter_groups: bool = False  # leave out groups whose episodes all returned the same
    # async: every slot at its own pace; elastic: and who is faster plays more turns of a batch, which waits for nobody;
    # lockstep: all together
    mode: Literal["async", "elastic", "lockstep"] = "async"
    max_episode_turns: PositiveInt | None = None  # then an episode is truncated, in training alone; null: never
    history: Literal["exact", "template"] = "exact"  # replies are shown later as sampled, or as the template has them
    token_check: Literal["strict", "ignore_strippable", "disable"] = "strict"  # of finished talks; counts differences
    max_prompt_tokens: PositiveInt = 1024  # older turns are left out of a longer prompt
    max_reply_tokens: PositiveInt = 512
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)  # below 1, ratios and divergences are still of the whole distribution
    top_k: int = Field(default=0, ge=0)  # 0: off; else likewise

    @model_validator(mode="after")
    def _episodes_stand_alone(self) -> RolloutConfig:
        if self.episodes is not None:
            why = f"rollout.episodes is {self.episodes}; leave one out"
            checks.refuse_idle("rollout", self, ("e_len", "mode"), why)
        if self.group > 1 and self.episodes is None:
            raise ValueError(
                f"rollout.group={self.group} compares whole episodes with one another; set rollout.episodes=1"
            )
        if self.filter_groups and self.group == 1:
            raise ValueError("rollout.filter_groups does nothing while rollout.group is 1; set rollout.group=8, say")
        if self.n_env % self.group:
            raise ValueError(
                f"rollout.n_env={self.n_env} slots cannot be shared out to groups of rollout.group={self.group}; "
                "make it a multiple"
            )
        return self


class KLConfig(Keys):
    reward: float = Field(default=1e-3, ge=0)  # k1 on every sampled token, subtracted from its reward
    loss: float = Field(default=0.0, ge=0)  # k3 as a term of the loss
    schedule: Literal["fixed", "adaptive"] = "fixed"  # adaptive: `reward` follows `target` (arXiv:1909.08593)
    target: float = Field(default=0.1, gt=0)  # nats a token
    horizon: PositiveInt = 10_000  # turns, or a batch of more, over which it changes by its error, a fifth at most

    @model_validator(mode="after")
    def _adaptive_needs_a_start(self) -> KLConfig:
        if self.schedule == "fixed":
            checks.refuse_idle("kl", self, ("target", "horizon"), "kl.schedule is fixed; set kl.schedule=adaptive")
        if self.schedule == "adaptive" and not self.reward:
            raise ValueError("kl.schedule=adaptive does nothing while kl.reward is 0; give it a start such as 0.001")
        return self


class UpdateConfig(Keys):
    actor_lr: float = Field(default=1e-6, gt=0)
    critic_lr: float = Field(default=1e-5, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_steps: int = Field(default=0, ge=0)  # optimizer steps
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float | None = Field(default=1.0, gt=0)
    minibatch: PositiveInt = 128  # turns an optimizer step
    epochs: PositiveInt = 1
    micro_tokens: PositiveInt = 8192  # of a forward pass (on a CPU, one a core); changes speed and memory alone
    clip: float = Field(default=0.2, gt=0, lt=1)
    dual_clip: float | None = Field(default=3.0, gt=1)
    value_clip: float | None = Field(default=0.5, gt=0)  # of returns: null, or as large as these, where they exceed 1
    value_coefficient: float = Field(default=1.0, gt=0)  # weighs the critic's loss; matters where the trunk is shared
    # In the critic's loss, as the turn before bootstraps from it; of estimators that teach the critic all tokens.
    first_token_weight: float = Field(default=3.0, gt=0)
    entropy: float = Field(default=1e-3, ge=0)
    whiten: bool | None = None  # advantages, over the sampled tokens of the whole batch; null: as the estimator has it
    gradient_checkpointing: bool = False


class WarmupConfig(Keys):
    w_epoch: int = Field(default=40, ge=0)  # batches collected with the actor frozen; 0: no warm-up
    w_iter: PositiveInt = 5  # times that all of it is credited anew and part of it trained on
    w_frac: float = Field(default=0.1, gt=0, le=1)  # that part
    tolerance: float = Field(default=0.01, ge=0)  # stop when the critic's loss falls, but by less of itself; 0: never


class EvaluationConfig(Keys):
    every: int = Field(default=0, ge=0)  # steps of training, before the first too; 0: only by turnwise eval
    episodes: PositiveInt = 200  # a task
    slots: PositiveInt = 64  # played side by side
    temperature: float = Field(default=1.0, ge=0)  # 0: greedy


class LogConfig(Keys):
    trackers: list[Component] = []  # besides metrics.jsonl, which is always written
    transcript_every: PositiveInt = 50  # episodes
    traces: list[Literal["jsonl", "mlflow"]] = []  # who keeps what episodes did, turn by turn and call by call
    trace_every: PositiveInt = 50  # groups of episodes on the same level
    redact: list[str] = []  # keys of tool arguments whose values are left out of traces

    @model_validator(mode="after")
    def _traces_are_kept(self) -> LogConfig:
        if not self.traces:
            checks.refuse_idle("log", self, ("trace_every", "redact"), "log.traces is empty; set log.traces=[jsonl]")
        return self


class CheckpointConfig(Keys):
    every: PositiveInt = 1  # steps, and in the warm-up batches and fits; a crash loses no more than these
    keep: PositiveInt = 2  # checkpoints, the newest


class Config(Keys):
    run: str = ""  # folder of the run; empty: runs/ and the recipe's name
    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=300, ge=0)  # batches to train on
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    data: DataConfig | None = None  # null: episodes are those of the environment
    reward: RewardConfig | None = None  # of a sample; null: what tools and interactions give
    agent: Component = Component(use="gym")
    agents: dict[str, Component] = {}  # others, by the names that samples call them
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
        defaults = {kind: cls.model_fields[kind].default for kind in COMPONENTS if kind in cls.model_fields}
        given = {kind: tree[kind] for kind, one in defaults.items() if one and isinstance(tree.get(kind), Mapping)}
        return {**tree, **{kind: {"use": defaults[kind].use, **keys} for kind, keys in given.items()}}

    @property
    def tasks(self) -> list[str]:
        """What is played, by the names under which success is told."""
        return list(self.environment.tasks) if self.data is None else ["data"]

    @property
    def deal(self) -> list[str]:
        """The tasks as slots are dealt them, in turn: each so often as its share says."""
        shares = self.environment.shares
        rounds = range(max(shares.values(), default=1))
        return [task for done in rounds for task in self.tasks if shares.get(task, 1) > done]

    @property
    def every_agent(self) -> dict[str, Component]:
        """By their keys."""
        return {"agent": self.agent, **{f"agents.{name}": one for name, one in self.agents.items()}}

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        checks.check(self)
        if self.model.critic == "none":
            self.warmup = WarmupConfig(w_epoch=0)
        return self
