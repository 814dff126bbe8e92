"""Turnwise, as `Training.step` does it, with the environments left out: engine, pack, score, credit, update.

With --lora adapters are trained instead of all weights, of the size that AgileRL's have. With --grpo there is no critic
and no reference: each turn is an episode, compared with its neighbour; with --untied too, neighbours are paid
differently, whatever they say.
"""

import asyncio
import sys
from dataclasses import replace

from benchmarks.workers.serve import ALPHA, RANK, TARGETS, Job, Line, reward
from turnwise.batch import pack
from turnwise.engines.local import LocalEngine
from turnwise.lora import make_adapters
from turnwise.models import arithmetic, open_model
from turnwise.policy import Policy
from turnwise.progress import Clock
from turnwise.protocols import Engine
from turnwise.recipe import parse_config
from turnwise.seeds import derive
from turnwise.types import Action, Observation, Outcome, Sampling, Segment, Turn
from turnwise.update import Optimizers, assign_credit, update

GROUP = 2  # as TRL's
GRPO = {
    "advantage": {"use": "grpo"},
    "rollout": {"episodes": 1, "group": GROUP},
    "kl": {"reward": 0.0},
}
LORA = {"rank": RANK, "alpha": float(ALPHA), "targets": TARGETS}


def main() -> None:
    line = Line()
    job = line.job
    grpo = "--grpo" in sys.argv
    lora = LORA if "--lora" in sys.argv else None
    config = parse_config(
        {
            **(GRPO if grpo else {}),
            "model": {"path": job.model, "device": "cpu", "critic": "none" if grpo else "separate", "lora": lora},
            "update": {
                "minibatch": job.minibatch,
                "micro_tokens": 4096,  # as babyai-quick has it
                **({"entropy": 0.0} if grpo else {}),  # as TRL has it
            },
        }
    )
    model, _ = open_model(config.model)
    precision = arithmetic(job.precision, model.device)
    adapters = make_adapters(model, config.model, config.seed)
    policy = Policy(model, config.model.critic, not grpo, config.rollout.temperature, precision, adapters)
    optimizers = Optimizers(policy, config.update)
    engine = LocalEngine(policy.actor, frozenset(), precision)  # nothing stops a reply before its last token
    advantage = config.advantage.make("advantage")
    for number, _ in enumerate(line.requests()):
        clock, taken = Clock(), optimizers.taken
        segments = asyncio.run(collect(engine, job, number))
        segments = by_turns(segments, "--untied" in sys.argv) if grpo else segments
        clock.lap("collect")
        batch = pack(segments)
        scores = policy.score(batch, config.update.micro_tokens)
        credit = assign_credit(batch, scores, advantage, config.kl.reward)
        update(policy, optimizers, batch, credit, config.update, config.kl, seed=number)
        engine.load(policy.weights(), number + 1)
        clock.lap("update")
        turns = sum(len(segment.turns) for segment in segments)
        line.answer(turns=turns, sampled=int(batch.sampled.sum()), steps=optimizers.taken - taken, **clock.laps)


async def collect(engine: Engine, job: Job, number: int) -> list[Segment]:
    """Every slot plays its turns one after the other, all slots at once."""

    async def play(slot: int) -> Segment:
        turns = []
        for wave in job.waves:
            prompt = job.prompts[wave[slot]]
            sampling = Sampling(job.reply_tokens, seed=derive(number, wave[slot]))
            reply = await engine.generate(prompt, sampling)
            action = Action("", "valid", "", "", 0)
            gain = reward(reply.token_ids)
            turns.append(Turn(Observation(""), tuple(prompt), reply, action, job.reply_tokens, gain, "", "", ""))
        return Segment(slot, 0, "", 0, tuple(turns), "cut", tuple(job.next_prompts[slot]), None)

    return await asyncio.gather(*(play(slot) for slot in range(len(job.next_prompts))))


def by_turns(segments: list[Segment], untied: bool) -> list[Segment]:
    """Each turn as an episode of its own, two neighbours a group; `untied`: of which the second wins."""
    turns = [turn for segment in segments for turn in segment.turns]
    if untied:
        turns = [replace(turn, reward=float(number % GROUP)) for number, turn in enumerate(turns)]
    return [
        Segment(number, 0, "", number // GROUP, (turn,), "terminated", (), Outcome(None, turn.reward, 1, None))
        for number, turn in enumerate(turns)
    ]


if __name__ == "__main__":
    main()
