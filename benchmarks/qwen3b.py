"""How long does a PPO step take at the size of Qwen2.5-3B on one GPU? With all weights trained, and with adapters.

256 turns, 8 of each of 32 slots, are sampled, scored, credited and trained on, with a separate critic and a
reference. Weights and tokens are random, and no environment is played: the work depends on neither.

The operations of an update are those of its products, by formula, with what is computed twice counted once:

    2 p (2 W T + V D n) + 6 A T + 24 L H S

for T tokens that are read (no padding; what the rows of a line begin with once) and n that were sampled; W weights in
the L layers of a trunk, of which there are two; V x D in the actor's head; A in all adapters; queries H numbers wide;
and S pairs of a token and one that it sees. Forward and backward passes are p = 3 products with a trained weight, and
2 with a frozen one.
"""

import argparse
import asyncio
import gc
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import product_rate
from benchmarks.report import keep
from benchmarks.workers.serve import Job
from benchmarks.workers.train_turnwise import collect
from turnwise.batch import Batch, pack
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.lora import make_adapters
from turnwise.models import arithmetic, pick_device
from turnwise.policy import Policy
from turnwise.progress import Clock
from turnwise.protocols import Engine
from turnwise.recipe import parse_config
from turnwise.seeds import derive
from turnwise.update import Optimizers, assign_credit, minibatches, update

ROUNDS = 2
# A token keeps 77 KB a layer, if nothing is computed twice: with all weights trained, lines of 8,000 tokens fit beside
# the optimizers' 92 GiB; with adapters there is room for longer ones.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "full": {"model": {"lora": None}, "update": {"micro_tokens": 8192}},
    "lora": {"model": {"lora": {"rank": 32}}, "update": {"micro_tokens": 16_384}},
}


@dataclass(frozen=True)
class Size:
    model: Mapping[str, Any]
    slots: int
    turns: int  # of each slot
    minibatch: int
    common: int  # tokens that all prompts begin with
    prompt: int  # tokens, in the middle; a tenth more or less
    reply: int  # tokens
    product: int  # side of the matrices whose product shows what the machine can do


LARGE = Size(
    model={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    slots=32, turns=8, minibatch=128, common=300, prompt=500, reply=150, product=16_384,
)  # fmt: skip
SMALL = Size(
    model={
        "vocab_size": 500,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    slots=4, turns=2, minibatch=4, common=30, prompt=50, reply=15, product=256,
)  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a quick try, on a CPU too; its figures mean nothing")
    parser.add_argument("--only", choices=WAYS, help="none: one way after the other, for the record")
    parser.add_argument("--micro-tokens", type=int, help="of a forward pass, other than a way has")
    twice = argparse.BooleanOptionalAction
    parser.add_argument("--twice", action=twice, help="compute activations twice, other than a way has it")
    parser.add_argument("--profile", action="store_true", help="tell what one more update does; nothing is recorded")
    options = parser.parse_args(arguments)
    device = pick_device("auto")
    if device.type != "cuda" and not options.small:
        sys.exit("qwen3b needs a GPU; python -m benchmarks.qwen3b --small tries it without one")
    size = SMALL if options.small else LARGE
    job = make_job(size)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "turns": len(job.prompts),
        "prompt_tokens": sum(map(len, job.prompts)),
        "sampled_tokens": len(job.prompts) * job.reply_tokens,
        "rounds": ROUNDS,
    }
    for way in [options.only] if options.only else WAYS:
        gc.collect()  # of the model before it, whose parts know one another
        torch.cuda.empty_cache()
        config = configure(way, size, options.micro_tokens, options.twice)
        if options.profile:
            tell(config, size, job, device)
            continue
        figures[way] = measure(config, size, job, device)
        for key, value in figures[way].items():
            print(f"{way}: {key} = {value:.4g}" if isinstance(value, float) else f"{way}: {key} = {value}", flush=True)
        keep("qwen3b", figures, options.small or not figures.keys() >= set(WAYS))


def make_job(size: Size) -> Job:
    """Prompts of random tokens with a common beginning; the model is not in a folder."""
    rng = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return torch.randint(0, size.model["vocab_size"], (count,), generator=rng).tolist()

    common, own, spread = draw(size.common), size.prompt - size.common, size.prompt // 10

    def prompt() -> list[int]:
        return [*common, *draw(int(torch.randint(own - spread, own + spread + 1, (), generator=rng)))]

    prompts = [prompt() for _ in range(size.slots * size.turns)]
    return Job("", prompts, [prompt() for _ in range(size.slots)], size.reply, size.minibatch, "auto")


def configure(way: str, size: Size, micro_tokens: int | None = None, twice: bool | None = None) -> Config:
    """The defaults, which are the report's values, but for sizes."""
    others = {"micro_tokens": micro_tokens, "gradient_checkpointing": twice}
    update = {**WAYS[way]["update"], **{key: value for key, value in others.items() if value is not None}}
    return parse_config(
        {
            "model": WAYS[way]["model"],
            "rollout": {"n_env": size.slots, "e_len": size.turns},
            "update": {"minibatch": size.minibatch, **update},
        }
    )


def make_policy(config: Config, size: Size, device: torch.device) -> Policy:
    """As a training makes it, of a model with random weights."""
    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(Qwen2Config(**size.model, max_position_embeddings=4096, tie_word_embeddings=True))
    precision = arithmetic(config.model.precision, device)
    adapters = make_adapters(model, config.model, config.seed)
    policy = Policy(model.eval(), config.model.critic, True, config.rollout.temperature, precision, adapters)
    if config.update.gradient_checkpointing:
        policy.checkpoint_activations()
    return policy


def measure(config: Config, size: Size, job: Job, device: torch.device) -> dict[str, Any]:
    """Medians of a few steps, after one that warms up.

    After each the rate of products is measured anew: a GPU that has been at work for a while may have a slower clock.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    policy = make_policy(config, size, device)
    optimizers = Optimizers(policy, config.update)
    engine = LocalEngine(policy.actor, frozenset(), policy.precision)  # nothing stops a reply before its last token
    laps: list[dict[str, float]] = []
    products: list[float] = []  # TFLOP a second
    gap = tflop = 0.0
    tokens = sum(map(len, job.prompts)) + len(job.prompts) * job.reply_tokens
    for number in range(ROUNDS + 1):
        batch, taken, gap = step(config, job, policy, optimizers, engine, number)
        laps.append(taken)
        products.append(product_rate(device, size.product, precisions=["bf16"])["bf16"] / 1e3)
        tflop = operations(policy, batch, config, number) / 1e12
    seconds = {name: statistics.median(lap[name] for lap in laps[1:]) for name in laps[0]}
    shares = [tflop / lap["update"] / rate for lap, rate in zip(laps[1:], products[1:], strict=True)]
    return {
        "micro_tokens": config.update.micro_tokens,
        "activations_twice": config.update.gradient_checkpointing,
        **{f"{name}_s": taken for name, taken in seconds.items()},
        "step_s": sum(seconds.values()),
        "turns_per_s": len(job.prompts) / sum(seconds.values()),
        "sampled_tokens_per_s": len(job.prompts) * job.reply_tokens / seconds["collect"],
        "trained_tokens_per_s": tokens / seconds["update"],
        "update_tflop": tflop,
        "update_tflop_per_s": tflop / seconds["update"],
        "products_tflop_per_s": statistics.median(products[1:]),
        "share_of_products": statistics.median(shares),
        "engine_gap": gap,
        "trained_parameters": sum(parameter.numel() for parameter in policy.trained_parameters()),
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
    }


def tell(config: Config, size: Size, job: Job, device: torch.device) -> None:
    """Print which kernels an update runs, how long they take, and how long it takes in all."""
    policy = make_policy(config, size, device)
    optimizers = Optimizers(policy, config.update)
    engine = LocalEngine(policy.actor, frozenset(), policy.precision)
    step(config, job, policy, optimizers, engine, 0)
    seen = profile()
    _, taken, _ = step(config, job, policy, optimizers, engine, 1, seen)
    order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=80))
    print(f"the update took {taken['update']:.2f} s while it was watched")


def step(
    config: Config,
    job: Job,
    policy: Policy,
    optimizers: Optimizers,
    engine: Engine,
    number: int,
    watch: AbstractContextManager[object] | None = None,
) -> tuple[Batch, dict[str, float], float]:
    """The batch, the seconds of each part, and the largest gap between the engine's log-probs and the trainer's.

    The update can be watched.
    """
    engine.load({}, number)  # forgets the prompts, which are the same in every round
    clock = Clock()

    def lap(name: str) -> None:
        if policy.device.type == "cuda":
            torch.cuda.synchronize(policy.device)
        clock.lap(name)

    batch = pack(asyncio.run(collect(engine, job, number)))
    lap("collect")
    scores = policy.score(batch, config.update.micro_tokens)
    credit = assign_credit(batch, scores, config.advantage.make("advantage"), config.kl.reward)
    lap("score")
    with watch or nullcontext():
        stats = update(policy, optimizers, batch, credit, config.update, config.kl, number)
        lap("update")
    return batch, clock.laps, stats["actor/engine_gap"]


def operations(policy: Policy, batch: Batch, config: Config, seed: int) -> int:
    """Floating-point operations of the update of that seed, by the formula above."""
    model: Any = policy.actor.config
    layers = policy.actor.get_decoder().get_submodule("layers")
    weights = {path: weight.numel() for path, weight in layers.named_parameters()}
    adapters = sum(count for path, count in weights.items() if ".lora_" in path)
    products = 2 if adapters else 3
    tokens = pairs = 0
    for rows in minibatches(batch.trained_rows, batch, config.update.minibatch, derive(seed, 0)):
        for micro in batch.micros(rows, config.update.micro_tokens, finals=False):
            tokens += len(micro.line.tokens)
            pairs += int((micro.line.positions + 1).sum())
    layered = 2 * (sum(weights.values()) - adapters) * tokens
    head = model.vocab_size * model.hidden_size * len(batch.logprobs)
    attention = model.num_hidden_layers * model.hidden_size * pairs  # queries are as wide as what they are made of
    return 2 * products * (layered + head) + 6 * adapters * tokens + 24 * attention


if __name__ == "__main__":
    main(sys.argv[1:])
