# pyright: reportMissingImports=false
"""vLLM on a CPU, in one process. What it cached in earlier rounds is forgotten, since the prompts are the same.

With `guess` behind the job it guesses tokens as Turnwise does.
"""

import sys
import time

from vllm import LLM, SamplingParams

from benchmarks.workers.serve import Line


def main() -> None:
    line = Line()
    job = line.job
    longest = max(map(len, job.prompts)) + job.reply_tokens
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[job.precision]
    guess = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    llm = LLM(
        job.model,
        dtype=dtype,
        max_model_len=longest,
        max_num_seqs=128,
        block_size=32,  # of the 128 that it takes on a processor, no two prompts here would have one in common
        seed=0,
        speculative_config=guess if "guess" in sys.argv else None,
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=job.reply_tokens, ignore_eos=True, detokenize=False)
    for request in line.requests():
        llm.reset_prefix_cache()
        start = time.perf_counter()
        sampled = 0
        for prompts in job.parts(**request):
            replies = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
            sampled += sum(len(reply.outputs[0].token_ids) for reply in replies)
        line.answer(sampled=sampled, seconds=time.perf_counter() - start)


if __name__ == "__main__":
    main()
