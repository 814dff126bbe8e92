# pyright: reportMissingImports=false
"""AgileRL's LLMPPO by its own two calls: get_action samples, learn trains. Every turn is an episode of one turn."""

import time

import agilerl.algorithms.core.base as base
import torch
from agilerl.algorithms import LLMPPO
from peft import LoraConfig
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoTokenizer

from benchmarks.workers.serve import ALPHA, RANK, TARGETS, Line, reward

# Where the package is installed its kernels replace the model's modules, and they need CUDA.
base.HAS_LIGER_KERNEL = False


def main() -> None:
    line = Line()
    job = line.job
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    agent = LLMPPO(
        model_name=job.model,
        model_config={"dtype": {"fp32": "float32", "bf16": "bfloat16"}[job.precision]},
        pad_token_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        device="cpu",
        wrap=False,
        batch_size=len(job.prompts),
        mini_batch_size=job.minibatch,
        micro_batch_size_per_gpu=job.minibatch,
        max_output_tokens=job.reply_tokens,
        min_output_tokens=job.reply_tokens,
        max_model_len=max(map(len, job.prompts)) + job.reply_tokens,
        hf_generate_chunk_size=len(job.next_prompts),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=1e-3,
        gamma=0.99,
        gae_lambda=0.95,
        advantage_granularity="turn",
        importance_sampling_level="token",
        update_epochs=1,
        lr_actor=1e-5,
        lr_critic=1e-5,
        gradient_checkpointing=False,
        use_liger_loss=False,
        lora_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
        ),
    )
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    register_optimizer_step_post_hook(count)
    for _ in line.requests():
        steps = 0
        start = time.perf_counter()
        prompts = []
        for ids in job.prompts:
            tokens = torch.tensor([ids])
            prompts.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
        rows, masks, *_ = agent.get_action(prompts)
        replies = [row[0, len(ids) :].tolist() for ids, row in zip(job.prompts, rows, strict=True)]
        middle = time.perf_counter()
        agent.learn((rows, masks, torch.tensor([reward(reply) for reply in replies])))
        seconds = {"collect": middle - start, "update": time.perf_counter() - middle}
        line.answer(turns=len(rows), sampled=sum(map(len, replies)), steps=steps, **seconds)


if __name__ == "__main__":
    main()
