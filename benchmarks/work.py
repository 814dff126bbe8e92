"""What all contestants work on: the embedded model, and the prompts of BabyAI turns that it played."""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.common import product_rate
from benchmarks.workers.serve import Job
from turnwise.collector import Collector
from turnwise.config import ModelConfig
from turnwise.engines.local import LocalEngine
from turnwise.models import arithmetic, open_model
from turnwise.recipe import load_config
from turnwise.render import Renderer

SLOTS = 32


def make_job(folder: Path, turns: int, minibatch: int, reply_tokens: int) -> Job:
    """Write the model into the folder, and collect the turns once."""
    size = [f"rollout.n_env={SLOTS}", f"rollout.e_len={turns // SLOTS}", f"update.minibatch={minibatch}"]
    config = load_config("babyai-quick", ["model.device=cpu", *size])
    model, tokenizer = open_model(config.model)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    renderer = Renderer(tokenizer)
    precision = arithmetic("auto", model.device)
    collector = Collector(config, renderer)
    segments = collector.collect(LocalEngine(model, renderer.stop_ids, precision))
    collector.close()
    prompts = [list(turn.prompt_ids) for segment in segments for turn in segment.turns]
    last = {segment.slot: segment for segment in segments}.values()
    next_prompts = [list(segment.final_prompt_ids or segment.turns[-1].prompt_ids) for segment in last]
    name = "bf16" if isinstance(precision, torch.autocast) else "fp32"
    return Job(str(folder / "model"), prompts, next_prompts, reply_tokens, minibatch, name)


def floor_s(job: Job, prompts: Sequence[Sequence[int]], passes: int) -> float:
    """Seconds that the products with the layers' weights alone would take, at the rate this machine shows for them now.

    Every token of prompts and replies goes through them once a pass; what prompts have in common is not shared.
    """
    model, _ = open_model(ModelConfig(path=job.model, device="cpu"))
    weights = sum(parameter.numel() for parameter in model.get_decoder().get_submodule("layers").parameters())
    tokens = sum(len(prompt) + job.reply_tokens for prompt in prompts)
    return 2 * passes * weights * tokens / (1e9 * product_rate(model.device)[job.precision])
