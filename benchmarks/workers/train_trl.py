# pyright: reportMissingImports=false
"""TRL's GRPOTrainer: its own sampling and its own loop, which stops for a request before each round."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.workers.serve import Line, reward

GROUP = 2  # the smallest that GRPO can compare


class Stops(TrainerCallback):
    """Waits before the first optimizer step of a round, answers after the last."""

    def __init__(self, line: Line):
        self.line = line
        self.requests: Iterator[Any] = line.requests()
        self.collect = self.start = 0.0
        self.sampled = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.line.job.optimizer_steps == 0:
            if next(self.requests, None) is None:
                control.should_training_stop = True
            self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        steps = self.line.job.optimizer_steps
        if state.global_step % steps == 0:
            update = time.perf_counter() - self.start - self.collect
            turns = len(self.line.job.prompts)
            self.line.answer(turns=turns, sampled=self.sampled, steps=steps, collect=self.collect, update=update)


def main() -> None:
    line = Line()
    job = line.job
    stops = Stops(line)

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """By TRL's own generator, one turn of every slot at a time."""
        assert len(prompts) == len(job.prompts)
        start = time.perf_counter()
        replies: list[list[int]] = [[] for _ in prompts]
        for wave in job.waves:
            sampled, _ = trainer._generate_single_turn([job.prompts[turn] for turn in wave], None, {}, 1)
            for turn, reply in zip(wave, sampled, strict=True):
                replies[turn] = reply
        stops.collect = time.perf_counter() - start
        stops.sampled = sum(map(len, replies))
        return {"prompt_ids": job.prompts, "completion_ids": replies, "logprobs": None}

    def pay(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [reward(reply) for reply in completion_ids]

    arguments = GRPOConfig(
        output_dir=str(Path(job.model).with_name("trl")),
        use_cpu=True,
        bf16=job.precision == "bf16",
        gradient_checkpointing=False,
        per_device_train_batch_size=job.minibatch // 4,
        gradient_accumulation_steps=4,
        steps_per_generation=4 * job.optimizer_steps,
        num_iterations=1,
        num_generations=GROUP,
        max_completion_length=job.reply_tokens,
        generation_kwargs={"min_new_tokens": job.reply_tokens},
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_steps=1_000_000,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.model, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(job.model),
        reward_funcs=pay,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(job.prompts) // GROUP)]}),
        rollout_func=rollout,
        callbacks=[stops],
    )
    trainer.train()


if __name__ == "__main__":
    main()
