"""The engine that samples inside the training process."""

import asyncio
import time
from collections.abc import Iterator
from itertools import count

from benchmarks.workers.serve import Line
from turnwise.config import ModelConfig
from turnwise.engines.local import LocalEngine
from turnwise.models import arithmetic, open_model
from turnwise.seeds import derive
from turnwise.types import Sampling


def main() -> None:
    line = Line()
    job = line.job
    model, _ = open_model(ModelConfig(path=job.model, device="cpu"))
    engine = LocalEngine(model, frozenset(), arithmetic(job.precision, model.device))

    async def sample(prompts: list[list[int]], seeds: Iterator[int]) -> int:
        how = [Sampling(job.reply_tokens, seed=next(seeds)) for _ in prompts]
        replies = await asyncio.gather(*map(engine.generate, prompts, how))
        return sum(len(reply.token_ids) for reply in replies)

    for number, request in enumerate(line.requests()):
        engine.load(model.state_dict(), number)  # forgets the prompts, which are the same in every round
        seeds = (derive("sample", number, place) for place in count())  # or alike prompts would have alike replies
        start = time.perf_counter()
        sampled = sum(asyncio.run(sample(prompts, seeds)) for prompts in job.parts(**request))
        line.answer(sampled=sampled, seconds=time.perf_counter() - start)


if __name__ == "__main__":
    main()
