"""`generate` of transformers: prompts padded on the left to the longest, all replies sampled to the end together."""

import time

import torch
from transformers import AutoModelForCausalLM

from benchmarks.naive import generate
from benchmarks.workers.serve import Line
from turnwise.models import arithmetic


def main() -> None:
    line = Line()
    job = line.job
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32).eval()
    precision = arithmetic(job.precision, model.device)
    for request in line.requests():
        start = time.perf_counter()
        sampled = 0
        with precision:
            for prompts in job.parts(**request):
                tokens, _ = generate(model, prompts, job.reply_tokens)
                sampled += tokens[:, -job.reply_tokens :].numel()
        line.answer(sampled=sampled, seconds=time.perf_counter() - start)


if __name__ == "__main__":
    main()
