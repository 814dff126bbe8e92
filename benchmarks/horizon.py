"""Do time and memory a turn stay flat along an episode of 2,000 turns, trained in batches of 8?"""

import statistics
import tempfile

from benchmarks.common import record, rss_mib
from turnwise.config import parse_config
from turnwise.train import Training

TURNS = 2_000
E_LEN = 8


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "run": f"{folder}/run",
                "environment": {"id": "benchmarks.common:Endless", "workers": "inline"},
                "parser": {"cue": "Answer with THINK: and ACTION:"},
                "rollout": {"n_env": 4, "e_len": E_LEN, "max_prompt_tokens": 512, "max_reply_tokens": 16},
                "update": {"minibatch": 32},
                "warmup": {"w_epoch": 0},
            }
        )
        training = Training(config, resume=False)
        seconds, memory = [], []
        for _ in range(TURNS // E_LEN):
            before = training.progress.seconds
            training.step()
            seconds.append(training.progress.seconds - before)
            memory.append(rss_mib())
    early = slice(100 // E_LEN, 600 // E_LEN)
    late = slice((TURNS - 500) // E_LEN, TURNS // E_LEN)
    figures = {}
    for name, series in (("seconds_a_batch", seconds), ("memory_mib", memory)):
        before, after = statistics.median(series[early]), statistics.median(series[late])
        figures |= {f"{name}_turns_100_to_600": before, f"{name}_last_500": after, f"{name}_ratio": after / before}
    record("horizon", {"turns": TURNS, "e_len": E_LEN, **figures})
