"""The order of it all. Read this first.

collect turns -> pack them into rows -> judge them -> credit them -> update -> publish -> record -> save.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any, Literal

from torch import Tensor

from turnwise import checkpoint
from turnwise.allocator import enough_memory
from turnwise.batch import Batch, pack
from turnwise.batch_loop import refuse_inside_a_loop
from turnwise.collector import Collector, NothingToCompare
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.engines.make import make_engine
from turnwise.evaluate import evaluate
from turnwise.lora import make_adapters
from turnwise.metrics import Recent, invalid_texts, measure, measure_credit, measure_groups
from turnwise.models import arithmetic, ends_of, identity, machine, open_model, refuse_other, refuse_too_long
from turnwise.players import Model
from turnwise.policy import Policy
from turnwise.progress import Clock, Progress, interruptible
from turnwise.protocols import Advantage, Closable, Engine, Tracker
from turnwise.rehearsal import rehearse
from turnwise.render import Renderer
from turnwise.results import held_out_figures, rows_of
from turnwise.run import Run
from turnwise.seeds import derive
from turnwise.traces.traces import Traces
from turnwise.types import Segment
from turnwise.update import Optimizers, assign_credit, fit_critic, update
from turnwise.view import View


def train(config: Config, resume: bool = False) -> bool:
    """Run a configuration to its end; False if the user stopped it before. Mistakes are ValueErrors."""
    refuse_inside_a_loop()
    training = Training(config, resume)
    servers = closing(training.engine) if isinstance(training.engine, Closable) else nullcontext()
    with servers, closing(training.collector), training.view, closing(training.traces), interruptible() as stop:
        if config.evaluation.every and not training.progress.lines:
            training.evaluate()
        try:
            training.warm_up(stop)
            while training.progress.step < config.steps and not stop.is_set():
                training.step()
        except NothingToCompare:  # maybe since all is learned: what there is is kept, and a resumed run plays on
            training.save()
            training.finish()
            raise
        if stop.is_set():
            training.view.say("stopped after the step under way")
        training.finish()
    return training.progress.step >= config.steps


class Training:
    """A run under way."""

    def __init__(self, config: Config, resume: bool):
        self.config = config
        self.run = Run(config, resume)
        self.saved = ""  # the newest checkpoint
        self.progress = Progress(kl_coefficient=config.kl.reward)
        model, tokenizer = open_model(config.model)
        refuse_too_long(model, config.rollout)
        precision = arithmetic(config.model.precision, model.device)
        made_by = machine(model.device, config.model.precision)
        about = config.rollout.history, config.model.chat_template_kwargs, ends_of(model)
        self.renderer = renderer = Renderer(tokenizer, *about)
        self.tokenizer, self.identity = tokenizer, identity(model, tokenizer)
        reference = bool(config.kl.reward or config.kl.loss)
        adapters = make_adapters(model, config.model, config.seed)
        self.policy = Policy(model, config.model.critic, reference, config.rollout.temperature, precision, adapters)
        if config.update.gradient_checkpointing:
            self.policy.checkpoint_activations()
        self.optimizers = Optimizers(self.policy, config.update)
        self.advantage: Advantage = config.advantage.make("advantage")
        untried = rehearse(config.advantage.make("advantage"), config)  # another one: it sees nothing of the run's
        with ExitStack() as refused:
            self.collector = refused.enter_context(closing(Collector(config, renderer)))
            self.recent = Recent(config.tasks)
            self.run.hold()
            if not resume:
                self.run.begin(config, made_by)
            self.traces = refused.enter_context(closing(Traces(config.log, self.run.folder, renderer.text)))
            self.warmup_segments: list[Segment] = []
            lost = self.restore()
            given = {"folder": self.run.folder, "done": self.progress.step}
            self.trackers: list[Tracker] = [one.make("log.trackers", **given) for one in config.log.trackers]
            # When nothing else can be refused: servers take minutes to start, and others' memory.
            self.engine: Engine = make_engine(config, self.policy.actor, renderer.stop_ids, precision)
            if resume:
                self.run.go_on(config, made_by)
            refused.pop_all()  # all is well: whoever trains closes them
        self.view = View(config, self.run.folder, resumed_at=self.progress.step if resume else None)
        if untried:
            self.view.say(untried)
        if self.run.changes:
            self.view.say(f"goes on with changes: {'; '.join(self.run.changes)}")
        if lost:
            self.view.say(f"{lost} environments did not come back as they were; they begin new episodes")
        if self.collector.data and self.collector.data.shared:
            self.view.say(f"{self.collector.data.shared} training samples are left out: they are test samples too")

    def collect(self, clock: Clock) -> list[Segment]:
        """Play one batch with the actor as it is now."""
        self.engine.load(self.policy.weights(), self.progress.step)
        segments = self.collector.collect(self.engine)
        clock.lap("collect")
        return segments

    def step(self) -> None:
        """Train on one batch."""
        config, progress, policy = self.config, self.progress, self.policy
        clock = Clock()
        segments = self.collect(clock)
        batch = pack(segments)
        scores = policy.score(batch, config.update.micro_tokens)
        credit = assign_credit(batch, scores, self.advantage, progress.kl_coefficient, config.update.whiten)
        clock.lap("score")
        seed = derive("update", config.seed, progress.step)
        self.optimizers.done = progress.step / config.steps
        stats = update(policy, self.optimizers, batch, credit, config.update, config.kl, seed)
        clock.lap("update")
        progress.step += 1
        credited = measure_credit(batch, credit)
        if self.advantage.groups:
            credited |= measure_groups(self.collector.tally.played)
        stats |= {"kl/coefficient": progress.kl_coefficient}
        self.adapt_kl(credited.get("kl/all", 0.0), sum(segment.acted for segment in segments))
        self.record("train", stats | credited, clock)
        if config.evaluation.every and progress.step % config.evaluation.every == 0:
            self.evaluate()
        self.save_in_turn(progress.step)

    def warm_up(self, stop: Event) -> None:
        """Teach the critic before the actor moves: collect with the actor frozen, then credit and fit in turns."""
        progress, warmup = self.progress, self.config.warmup
        while not progress.warm and progress.collected < warmup.w_epoch and not stop.is_set():
            self.collect_warmup()
        if progress.warm or not self.warmup_segments or stop.is_set():
            return
        batch = pack(self.warmup_segments)
        self.view.say(f"critic warm-up: {len(batch.trained_rows)} rows of {progress.collected} batches")
        reference = self.policy.reference_logprobs(batch, self.config.update.micro_tokens)
        while not progress.warm and not stop.is_set():
            self.fit_critic(batch, reference)
        if progress.warm:
            self.warmup_segments = []

    def collect_warmup(self) -> None:
        """Keep one batch for the warm-up."""
        progress, clock = self.progress, Clock()
        segments = self.collect(clock)
        self.run.keep_warmup(progress.collected, segments)
        self.warmup_segments += segments
        progress.collected += 1
        self.record("warmup", {"warmup/collected": progress.collected}, clock)
        self.save_in_turn(progress.collected)

    def fit_critic(self, batch: Batch, reference: Tensor | None) -> None:
        """Credit by the critic as it is now on all turns, then train it on a part of them."""
        config, progress, warmup = self.config, self.progress, self.config.warmup
        scores = self.policy.score(batch, config.update.micro_tokens, reference=False)
        scores = replace(scores, reference=reference)
        credit = assign_credit(batch, scores, self.advantage, progress.kl_coefficient)
        seed = derive("warmup", config.seed, progress.fitted)
        stats = fit_critic(self.policy, self.optimizers, batch, credit, config.update, warmup, seed)
        progress.fitted += 1
        before, progress.critic_loss = progress.critic_loss, stats["critic/loss"]
        fell = math.inf if before is None else before - progress.critic_loss
        # A rise is no end: the targets are bootstrapped by the critic itself, and move as it learns.
        converged = warmup.tolerance > 0 and 0 <= fell < warmup.tolerance * (before or 0.0)
        progress.warm = converged or progress.fitted >= warmup.w_iter
        self.log({"phase": "warmup", "warmup/iteration": progress.fitted, **stats})
        self.view.say(
            f"critic warm-up {progress.fitted}/{warmup.w_iter}: loss {progress.critic_loss:.4f}, "
            f"explained variance {stats['critic/explained_variance']:.2f}{', converged' if converged else ''}"
        )
        self.save_in_turn(progress.fitted)

    def record(self, phase: Literal["train", "warmup"], stats: Mapping[str, float], clock: Clock) -> None:
        """Tell everybody what happened in a batch."""
        progress, tally = self.progress, self.collector.tally
        self.recent.add(tally.played)
        turns = sum(segment.acted for segment in tally.played)
        progress.turns += turns
        progress.seconds += clock.total()
        figures = {"turns": progress.turns, **self.recent.metrics(), **measure(tally, self.recent.told), **stats}
        figures |= {f"time/{name}_s": seconds for name, seconds in clock.laps.items()}
        self.traces.tell(tally.traces, progress.step)
        progress.traces = self.traces.told
        figures |= self.traces.figures
        figures |= {"time/step_s": clock.total(), "time/turns_per_s": turns / clock.total()}
        said = invalid_texts(tally.played)
        self.log({"phase": phase, "step": progress.step, **figures, "invalid_texts": said})
        for transcript in tally.transcripts:
            self.run.write(transcript)
        if phase == "train":
            self.track(figures)
        self.view.step(progress.step, figures, said, tally.last_failure)
        if trouble := self.traces.trouble():
            self.view.say(trouble)

    def evaluate(self) -> None:
        """Play held-out levels with the actor as it is now, by an engine of its own: others have replies under way."""
        engine = LocalEngine(self.policy.actor, self.renderer.stop_ids, self.policy.precision)
        engine.load(self.policy.weights(), self.progress.step)
        try:
            with enough_memory("lower evaluation.slots"):
                records = evaluate(self.config, Model(engine, self.renderer), data=self.collector.data)
        except ValueError as error:  # of a scorer that is down, or of one level: training goes on without
            if not self.progress.step:
                raise
            self.view.say(f"held out, after {self.progress.step} steps: not played, since {error}")
            return
        told = {("held out", task) for task in self.recent.told}
        rows = rows_of({("actor", "held out"): records}, told)
        figures = held_out_figures(rows)
        self.log({"phase": "evaluation", "step": self.progress.step, **figures})
        self.track(figures)
        results = "  ".join(f"{row.task} {row.result}" for row in rows if row.task)
        self.view.say(f"held out, after {self.progress.step} steps: {results}")

    def track(self, figures: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            try:
                tracker.log(figures, self.progress.step)
            except Exception as error:  # of a service, maybe: the figures are in metrics.jsonl all the same
                self.view.say(f"{type(tracker).__name__} missed step {self.progress.step}: {error}")

    def log(self, line: dict[str, Any]) -> None:
        self.run.log(line)
        self.progress.lines += 1

    def adapt_kl(self, kl: float, turns: int) -> None:
        """Move an adaptive KL coefficient towards its target (Ziegler et al. 2019, arXiv:1909.08593, section 2.2)."""
        if self.config.kl.schedule == "adaptive":
            error = max(-0.2, min(0.2, kl / self.config.kl.target - 1))
            self.progress.kl_coefficient *= 1 + error * min(1.0, turns / self.config.kl.horizon)

    def save_in_turn(self, done: int) -> None:
        """After every so many steps, warm-up batches and fits of the critic."""
        if done % self.config.checkpoint.every == 0:
            self.save()

    def finish(self) -> None:
        """Write a checkpoint of where it all ends, and the trained policy as a Hugging Face folder."""
        if self.saved != self.place:
            self.save()
        self.run.keep_model(self.write_model)

    def write_model(self, folder: Path) -> None:
        self.policy.save(folder)
        self.tokenizer.save_pretrained(folder / "model")

    @property
    def place(self) -> str:
        """How far the run has come, by which its checkpoints are named."""
        progress = self.progress
        return f"{progress.step:06}-{progress.collected:04}-{progress.fitted:04}"

    def save(self) -> None:
        """Write a checkpoint."""
        progress = self.progress
        progress.recent = self.recent.state()
        trained = {path: weight for path, weight in self.policy.named_parameters() if weight.requires_grad}
        tensors: dict[str, Mapping[str, Tensor]] = {"policy": trained}
        for model, optimizer in self.optimizers.named().items():
            tensors[f"{model}_optimizer"] = checkpoint.optimizer_tensors(optimizer)
        state = {
            "model": self.identity,
            "samples": self.collector.samples,
            "progress": asdict(progress),
            "slots": self.collector.state(),
            "taken": self.optimizers.taken,
        }
        self.run.save(self.place, tensors, state, self.config.checkpoint.keep)
        self.saved = self.place

    def restore(self) -> int:
        """Go on from the newest checkpoint; a run without one begins anew.

        Returns how many slots could not be brought back to where they were.
        """
        lost = 0
        newest = checkpoint.newest(self.run.checkpoints)
        if newest is not None:
            tensors, state = checkpoint.load(newest)
            refuse_other(state["model"], self.identity, self.config.model.path, newest)
            if state["samples"] != self.collector.samples:
                raise ValueError(
                    f"data holds other samples than when {newest} was made; give those, or begin a new run"
                )
            checkpoint.load_parameters(self.policy, tensors["policy"])
            for model, optimizer in self.optimizers.named().items():
                checkpoint.load_optimizer(optimizer, tensors[f"{model}_optimizer"])
            self.optimizers.taken = state["taken"]
            self.progress, self.saved = Progress(**state["progress"]), newest.stem
            self.recent.restore(self.progress.recent)
            lost = self.collector.restore(state["slots"])
            if not self.progress.warm:
                self.warmup_segments = self.run.kept_warmup(self.progress.collected)
        self.run.forget_after(self.progress.lines)
        self.traces.go_on_from(self.progress.traces)
        return lost
