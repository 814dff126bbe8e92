"""How near does the update come to what the processor can do? By model size, and by how much row lengths differ."""

import statistics
import time

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import product_rate, record, rss_mib
from turnwise.advantages.gae import DualGAE
from turnwise.allocator import keep_freed_memory
from turnwise.batch import Batch, pack
from turnwise.config import KLConfig, ModelConfig, UpdateConfig
from turnwise.kernels import padded
from turnwise.lanes import Lanes
from turnwise.models import arithmetic, pick_device
from turnwise.policy import Policy
from turnwise.types import Action, Generation, Observation, Segment, Turn
from turnwise.update import Optimizers, assign_credit, update

SETTLING, ROUNDS = 3, 5  # until the allocator has set aside what an update needs, it waits for cleared pages
REPLY = 16
SIZES = {"2M": (256, 3, 256), "10M": (448, 5, 128), "50M": (896, 6, 64)}  # width, layers, and turns to train on
SPREADS = {"even": (128, 128), "4x": (52, 208)}  # shortest and longest row, in tokens


def main() -> None:
    keep_freed_memory()  # as the command line does
    device = pick_device("auto")
    precision = arithmetic(ModelConfig().precision, device)
    config = UpdateConfig()
    figures: dict[str, float] = {f"product_gflops_{name}": rate for name, rate in product_rate(device).items()}
    best = max(figures.values())
    models: dict[str, tuple[Policy, Optimizers]] = {}
    for name, (width, layers, _) in SIZES.items():
        model = small_model(width, layers).to(device)  # pyright: ignore[reportArgumentType]
        policy = Policy(model, "separate", reference=False, precision=precision)
        models[name] = policy, Optimizers(policy, config)
        figures[f"parameters_{name}"] = sum(p.numel() for p in model.parameters())
    seconds: dict[str, list[float]] = {}
    work: dict[str, float] = {}
    for number in range(SETTLING + ROUNDS):
        for size, (policy, optimizers) in models.items():
            for spread, (shortest, longest) in SPREADS.items():
                batch = made_up(SIZES[size][2], shortest, longest)
                credit = assign_credit(batch, policy.score(batch, config.micro_tokens), DualGAE(), 0.0)
                name = f"{size}_{spread}"
                if name not in work:
                    lanes, policy.lanes = policy.lanes, Lanes(1)  # operations are counted in this thread alone
                    with FlopCounterMode(display=False) as counter:
                        update(policy, optimizers, batch, credit, config, KLConfig(), seed=0)
                    policy.lanes = lanes
                    work[name] = counter.get_total_flops()
                    seconds[name] = []
                    figures[f"padding_{name}"] = padding(batch, config)
                    continue
                start = time.perf_counter()
                update(policy, optimizers, batch, credit, config, KLConfig(), seed=0)
                if number >= SETTLING:
                    seconds[name].append(time.perf_counter() - start)
                figures[f"tokens_{name}"] = len(batch.tokens)
    for name, series in seconds.items():
        taken = statistics.median(series)
        figures[f"tokens_per_s_{name}"] = figures.pop(f"tokens_{name}") / taken  # by actor and critic
        figures[f"gflops_{name}"] = work[name] / taken / 1e9
        figures[f"share_of_products_{name}"] = work[name] / taken / 1e9 / best
    record("update", {**figures, "rss_mib": rss_mib()})


def small_model(width: int, layers: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    heads = width // 64
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=512, hidden_size=width, intermediate_size=width * 5 // 2, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=2 - heads % 2, max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def made_up(turns: int, shortest: int, longest: int) -> Batch:
    """Turns of random tokens that share no beginning, with row lengths spread evenly."""
    rng = torch.Generator().manual_seed(1)
    segments = []
    for number in range(turns):
        length = shortest + (longest - shortest) * number // (turns - 1)
        ids = torch.randint(0, 512, (length,), generator=rng).tolist()
        generation = Generation(tuple(ids[-REPLY:]), (-6.0,) * REPLY, "length", 0)
        turn = Turn(
            Observation(""),
            tuple(ids[:-REPLY]),
            generation,
            Action("", "valid", "", "", 0),
            0,
            float(number % 2),
            "",
            "",
            "",
        )
        segments.append(Segment(number, 0, "", 0, (turn,), "terminated", (), None))
    return pack(segments)


def padding(batch: Batch, config: UpdateConfig) -> float:
    """The share of padding among the tokens that the layers read in one epoch."""
    order = torch.randperm(len(batch.trained_rows), generator=torch.Generator().manual_seed(0))
    parts = batch.trained_rows[order].split(config.minibatch)
    lines = [len(m.line.tokens) for part in parts for m in batch.micros(part, config.micro_tokens, finals=False)]
    return 1 - sum(lines) / sum(padded(tokens) for tokens in lines)


if __name__ == "__main__":
    main()
