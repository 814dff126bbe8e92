"""Do time and memory a turn stay flat along an episode of 2,000 turns, trained in batches of 8?

And what does a history that grows cost beside a window, as long as the model can read it?
"""

import statistics
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.common import record, rss_mib
from turnwise.parse import ThinkAct
from turnwise.recipe import parse_config
from turnwise.train import Training
from turnwise.types import Action

TURNS = 2_000
E_LEN = 8
GROWN = 64  # turns, which fill the embedded model's 4,096 tokens
ROUNDS = 3


class Anything(ThinkAct):
    """Takes every reply for the default action: none is rewritten in the history, which would part it from its row."""

    def parse(self, text: str) -> Action:
        return Action(self.default, "valid", text, "", 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {"turns": TURNS, "e_len": E_LEN, **flatness(folder), **growth(folder)}
    record("horizon", figures)


def flatness(folder: Path) -> dict[str, float]:
    """Of one episode of a window memory: its last 500 turns beside its early ones.

    Minutes lie between them, in which the machine may change its pace. So a run of short episodes goes on beside, a
    batch of this and a batch of that, and a batch of the long one is told in batches of the short one.
    """
    early = slice(100 // E_LEN, 600 // E_LEN)
    late = slice((TURNS - 500) // E_LEN, TURNS // E_LEN)
    long, short = (begin(folder / f"of-{turns}", "window", turns, slots=2) for turns in (TURNS, GROWN))
    seconds, beside, memory = [], [], []
    with closing(long.collector), closing(short.collector):
        for _ in range(TURNS // E_LEN):
            seconds.append(seconds_of_step(long))
            beside.append(seconds_of_step(short))
            memory.append(rss_mib())
    paces = [one / other for one, other in zip(seconds, beside, strict=True)]
    figures = {}
    for name, series in (("seconds_a_batch", seconds), ("batches_of_short", paces), ("memory_mib", memory)):
        before, after = statistics.median(series[early]), statistics.median(series[late])
        figures |= {f"{name}_turns_100_to_600": before, f"{name}_last_500": after, f"{name}_ratio": after / before}
    return figures


def growth(folder: Path) -> dict[str, float]:
    """Of both memories in turn, over shorter episodes: from their first batch to their last."""
    trainings = {memory: begin(folder / memory, memory, GROWN) for memory in ("window", "full")}
    seconds: dict[str, list[list[float]]] = {memory: [[] for _ in range(GROWN // E_LEN)] for memory in trainings}
    for _ in range(ROUNDS + 1):  # the first warms up
        for batch in range(GROWN // E_LEN):
            for memory, training in trainings.items():
                seconds[memory][batch].append(seconds_of_step(training))
    for training in trainings.values():
        training.collector.close()
    figures = {}
    for memory, batches in seconds.items():
        for batch in (0, 1, 3, GROWN // E_LEN - 1):
            figures[f"{memory}_seconds_a_batch_to_turn_{(batch + 1) * E_LEN}"] = statistics.median(batches[batch][1:])
    return figures


def begin(run: Path, memory: str, turns: int, slots: int = 4) -> Training:
    """A run whose episodes all end after so many turns."""
    return Training(
        parse_config(
            {
                "run": str(run),
                "environment": {"id": "benchmarks.common:Endless", "workers": "inline", "kwargs": {"limit": turns}},
                "memory": {"use": memory},
                "parser": {"use": f"{__name__}:Anything", "cue": "Answer with THINK: and ACTION:"},
                "rollout": {"n_env": slots, "e_len": E_LEN, "max_prompt_tokens": 4000, "max_reply_tokens": 16},
                "update": {"minibatch": slots * E_LEN, "micro_tokens": 4096},
                "warmup": {"w_epoch": 0},
            }
        ),
        resume=False,
    )


def seconds_of_step(training: Training) -> float:
    before = training.progress.seconds
    training.step()
    return training.progress.seconds - before


if __name__ == "__main__":
    main()
