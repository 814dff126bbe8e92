"""How many turns are trained a second: 256 BabyAI turns, sampled and trained on for one epoch of 4 minibatches.

Every contestant gets the same weights, prompts and rewards, samples as many tokens in every turn, of 32 turns at a
time as 32 environments would let it, and takes as many optimizer steps. No environment is played.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import Contestant, compete
from benchmarks.report import keep, parse, show, speedup
from benchmarks.work import floor_s, make_job

TURNS, MINIBATCH, REPLY_TOKENS = 256, 64, 32
ROUNDS = 7

CONTESTANTS = {
    "turnwise": Contestant(
        "workers.train_turnwise",
        "trains all weights of the actor and of a separate critic, reads a frozen reference, bootstraps at the cut",
    ),
    "turnwise_lora": Contestant(
        "workers.train_turnwise",
        "as Turnwise, but trains LoRA adapters of actor and critic, of AgileRL's size, instead of all weights; the "
        "model without them is the reference",
        arguments=("--lora",),
    ),
    "turnwise_grpo": Contestant(
        "workers.train_turnwise",
        "GRPO, as TRL: trains all weights of the actor, has no critic, no reference and no entropy bonus; turns whose "
        "group got the same reward have no gradient and are not read",
        arguments=("--grpo",),
    ),
    "turnwise_grpo_untied": Contestant(
        "workers.train_turnwise",
        "the same with rewards that differ in every group, so that all turns are read",
        arguments=("--grpo", "--untied"),
    ),
    "naive": Contestant("naive", "as Turnwise, but without the bootstrap; reads old log-probs anew"),
    "agilerl": Contestant(
        "workers.train_agilerl",
        "samples one prompt at a time; trains LoRA adapters of actor and critic (rank 8, queries and values) instead "
        "of all weights; its reference is an adapter too; each turn is an episode of its own, without a bootstrap",
        environment="agilerl",
        installs=("install torch==2.13.0", "install agilerl[cpu-llm]==2.58.0 torch==2.13.0"),
    ),
    "trl": Contestant(
        "workers.train_trl",
        "GRPO: trains all weights of the actor, has no critic and no reference (beta 0); reads old log-probs anew",
        environment="trl",
        installs=(
            "install torch==2.13.0",
            "install trl==1.16.0 transformers==5.23.0 accelerate==1.15.0 datasets==5.2.0 peft==0.21.2 torch==2.13.0",
        ),
        variables={"TRL_EXPERIMENTAL_SILENCE": "1"},
    ),
}
OURS = [name for name in CONTESTANTS if name.startswith("turnwise")]
WANTED = {"agilerl": 5.0, "trl": 3.0}  # by the same algorithm, PPO or GRPO, Turnwise is to be so many times as fast
UPDATE_WANTED = 1.5  # with sampling left out
# Of Turnwise, a backward pass for two: 1 to sample, 1 of the critic for its old values, 1 of the reference, and 3 of
# the actor and 3 of the critic to train them.
PASSES = 9


def main(arguments: Sequence[str] = ()) -> None:
    small, contestants = parse(__doc__, arguments, CONTESTANTS)
    turns, minibatch, rounds = (64, 16, 1) if small else (TURNS, MINIBATCH, ROUNDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = make_job(folder, turns, minibatch, REPLY_TOKENS)
        floor = floor_s(job, job.prompts, PASSES)
        answers, peaks = compete(contestants, job, folder, [{}], rounds)
    work = {"turns": turns, "sampled": turns * REPLY_TOKENS, "steps": job.optimizer_steps}
    for name, (mine,) in answers.items():
        for answer in mine:
            assert answer.items() >= work.items(), f"{name} did not do the work: {answer}, not {work}"
    update = {name: [answer["update"] for answer in mine] for name, (mine,) in answers.items()}
    whole = {name: [answer["collect"] + answer["update"] for answer in mine] for name, (mine,) in answers.items()}
    figures = {
        name: {
            "turns_per_s": turns / statistics.median(whole[name]),
            "collect_s": statistics.median(answer["collect"] for answer in answers[name][0]),
            "update_s": statistics.median(update[name]),
            "step_s": (min(whole[name]), max(whole[name])),
            "peak_mib": peaks[name],
            **{f"{our}_times_as_fast": speedup(whole, name, our) for our in OURS},
            "wanted": WANTED.get(name),
            **{f"{our}_update_times_as_fast": speedup(update, name, our) for our in OURS},
            "update_wanted": UPDATE_WANTED if name in WANTED else None,
            **contestants[name].words(),
        }
        for name in contestants
    }
    work |= {
        "floor_s": floor,
        "rounds": rounds,
        "prompt_tokens": sum(map(len, job.prompts)),
        "precision": job.precision,
    }
    keep("train_step", {**work, "contestants": figures}, small or contestants != CONTESTANTS)
    show("turns sampled and trained on, medians", work, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
