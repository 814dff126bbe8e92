"""How long does credit take? The estimator against a loop over tokens, as the published trainers write it."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.common import record
from turnwise.advantages.gae import DualGAE
from turnwise.batch import Streams

ROUNDS = 5
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOPED = 100_000  # tokens; the loop is not timed beyond: it takes seconds
TURN, SEGMENT = 20, 8  # tokens a turn, turns a segment


def main() -> None:
    figures: dict[str, float] = {}
    for tokens in SIZES:
        streams = made_up(tokens)
        contestants: dict[str, Callable[[Streams], Tensor]] = {"turnwise": lambda s: DualGAE()(s).advantages}
        if tokens <= LOOPED:
            contestants["loop"] = loop
            gap = (loop(streams) - DualGAE()(streams).advantages).abs().max()
            figures[f"gap_{tokens}"] = float(gap)
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(ROUNDS):
            for name, contestant in contestants.items():
                start = time.perf_counter()
                contestant(streams)
                seconds[name].append(time.perf_counter() - start)
        for name, series in seconds.items():
            figures[f"{name}_ms_{tokens}"] = 1e3 * statistics.median(series)
        if "loop" in seconds:
            pairs = zip(seconds["loop"], seconds["turnwise"], strict=True)
            figures[f"ratio_{tokens}"] = statistics.median(slow / fast for slow, fast in pairs)
    figures["growth_100k_to_1m"] = figures["turnwise_ms_1000000"] / figures["turnwise_ms_100000"]
    record("credit", figures)


def made_up(tokens: int) -> Streams:
    """Segments of `SEGMENT` turns of `TURN` tokens, every third of them terminated."""
    torch.manual_seed(0)
    place = torch.arange(tokens)
    segment_ends = place % (TURN * SEGMENT) == TURN * SEGMENT - 1
    segment_ends[-1] = True
    count = int(segment_ends.sum())
    bootstraps = torch.rand(count) * (torch.arange(count) % 3 != 0)
    step_ends = (place % TURN == TURN - 1) | segment_ends
    rewards = torch.randn(tokens) * step_ends
    return Streams([], rewards, torch.rand(tokens), bootstraps, step_ends, segment_ends)


def loop(streams: Streams) -> Tensor:
    """From the last token to the first, one tensor element at a time."""
    rules = DualGAE()
    advantages = torch.zeros_like(streams.values)
    segment = len(streams.bootstraps)
    following = carried = torch.tensor(0.0)
    for t in reversed(range(len(streams.values))):
        if streams.segment_ends[t]:
            segment -= 1
            following, carried = streams.bootstraps[segment], torch.tensor(0.0)
        stepped = bool(streams.step_ends[t])
        gamma, lam = (rules.step_gamma, rules.step_lambda) if stepped else (rules.token_gamma, rules.token_lambda)
        delta = streams.rewards[t] + gamma * following - streams.values[t]
        carried = delta + gamma * lam * carried
        advantages[t] = carried
        following = streams.values[t]
    return advantages
