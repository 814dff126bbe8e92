"""How long does credit take? Estimators against loops as the published trainers write them.

Verlog's goes over turns by single elements, and then over the tokens of all turns side by side; VAGEN's bi-level one
goes over turns and then over all tokens, by single elements. Both compute what our estimators do.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import record
from turnwise.advantages.bilevel import BiLevelGAE
from turnwise.advantages.gae import DualGAE
from turnwise.allocator import keep_freed_memory
from turnwise.batch import Streams
from turnwise.protocols import Advantage

ROUNDS = 9
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOPED = 100_000  # tokens; the loops are not timed beyond: they take seconds
A_ROUND = 1_000_000  # tokens that ours goes over, call by call: one call is over before its caches are warm
TURN, SEGMENT = 20, 8  # tokens a turn, turns a segment


@dataclass(frozen=True)
class Pair:
    ours: Advantage
    loop: Callable[[Streams], Tensor]


def main() -> None:
    keep_freed_memory()  # as the command line does
    figures: dict[str, float] = {}
    for tokens in SIZES:
        streams = made_up(tokens)
        for name, pair in PAIRS.items():
            seconds: dict[str, list[float]] = {"turnwise": [], "loop": []}
            if tokens <= LOOPED:
                gap = pair.loop(streams) - pair.ours(streams).advantages
                figures[f"{name}_gap_{tokens}"] = float(gap.abs().max())
            for _ in range(ROUNDS):
                seconds["turnwise"].append(timed(pair.ours, streams, A_ROUND // tokens))
                if tokens <= LOOPED:
                    seconds["loop"].append(timed(pair.loop, streams))
            for who, series in seconds.items():
                if series:
                    figures[f"{name}_{who}_ms_{tokens}"] = 1e3 * statistics.median(series)
            if tokens <= LOOPED:
                pairs = zip(seconds["loop"], seconds["turnwise"], strict=True)
                figures[f"{name}_ratio_{tokens}"] = statistics.median(slow / fast for slow, fast in pairs)
    for name in PAIRS:
        growth = figures[f"{name}_turnwise_ms_1000000"] / figures[f"{name}_turnwise_ms_100000"]
        figures[f"{name}_growth_100k_to_1m"] = growth
    record("credit", figures)


def timed(work: Callable[[Streams], object], streams: Streams, calls: int = 1) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in range(calls):
        work(streams)
    return (time.perf_counter() - start) / calls


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


def verlog(streams: Streams) -> Tensor:
    """Dual-discount GAE where both factors of tokens are 1: first what follows each turn, then its tokens."""
    rules = DualGAE()
    rewards, values = streams.rewards.view(-1, TURN), streams.values.view(-1, TURN)
    ends = streams.segment_ends.view(-1, TURN)[:, -1]
    gains, firsts = rewards.sum(1), values[:, 0].clone()
    next_values, carried = torch.zeros_like(firsts), torch.zeros_like(firsts)
    segment = len(streams.bootstraps)
    value = gain = torch.tensor(0.0)
    for turn in reversed(range(len(firsts))):
        if ends[turn]:
            segment -= 1
            value, gain = streams.bootstraps[segment], torch.tensor(0.0)
        next_values[turn] = rules.step_gamma * value
        carried[turn] = rules.step_gamma * rules.step_lambda * gain
        gain = gains[turn] + next_values[turn] - firsts[turn] + carried[turn]
        value = firsts[turn]
    columns = [rewards[:, t:].sum(1) + next_values - values[:, t] + carried for t in range(TURN)]
    return torch.stack(columns, 1).flatten()


def vagen(streams: Streams) -> Tensor:
    """Bi-level GAE: over the last tokens of turns, then over the tokens of each."""
    rules = BiLevelGAE()
    rewards, values = streams.rewards.clone(), streams.values
    segment = len(streams.bootstraps)
    following = carried = torch.tensor(0.0)
    for t in reversed(streams.step_ends.nonzero()[:, 0].tolist()):
        if streams.segment_ends[t]:
            segment -= 1
            following, carried = streams.bootstraps[segment], torch.tensor(0.0)
        delta = rewards[t] + rules.turn_gamma * following - values[t]
        carried = delta + rules.turn_gamma * rules.turn_lambda * carried
        rewards[t] = carried + values[t]
        following = values[t]
    advantages = torch.zeros_like(values)
    for t in reversed(range(len(values))):
        if streams.step_ends[t]:
            following, carried = torch.tensor(0.0), torch.tensor(0.0)
        delta = rewards[t] + rules.token_gamma * following - values[t]
        carried = delta + rules.token_gamma * rules.token_lambda * carried
        advantages[t] = carried
        following = values[t]
    return advantages


PAIRS = {"verlog": Pair(DualGAE(), verlog), "vagen": Pair(BiLevelGAE(), vagen)}


if __name__ == "__main__":
    main()
