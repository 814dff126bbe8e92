"""How far an engine's log-probs are from the trainer's, token by token: `python -m benchmarks engine_gap`.

Each engine plays the same levels with the embedded model; then the trainer scores what was sampled. vLLM takes part
where the interpreter has it, and each has a record of its own. The gap is what importance ratios are off by before
anything was trained.
"""

import tempfile
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.common import record
from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.engines.make import make_engine
from turnwise.models import arithmetic, open_model
from turnwise.policy import Policy
from turnwise.recipe import load_config
from turnwise.render import Renderer

ENGINES: dict[str, dict[str, Any]] = {
    "local": {"use": "local"},
    "vllm": {
        "use": "vllm_inside",
        "options": {"max_model_len": 1024, "enforce_eager": True, "gpu_memory_utilization": 0.3},
    },
}
PRECISIONS = ("fp32", "bf16")
BATCHES = 4
SHARES = {"median": 0.5, "p99": 0.99}


def main() -> None:
    for engine in ENGINES if find_spec("vllm") else ["local"]:
        figures: dict[str, float] = {}
        for precision in PRECISIONS:
            gaps = gaps_of(engine, precision)
            told = {name: float(gaps.abs().quantile(share)) for name, share in SHARES.items()}
            told |= {"max": float(gaps.abs().max()), "mean": float(gaps.mean()), "tokens": len(gaps)}
            figures |= {f"{precision}_{name}": value for name, value in told.items()}
        record(f"engine_gap_{engine}", figures)


@torch.no_grad()
def gaps_of(engine: str, precision: str) -> torch.Tensor:
    """[N] the trainer's log-prob less the engine's."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("babyai-quick", ["model.device=cpu", f"model.precision={precision}", f"run={folder}"])
        config = config.model_copy(update={"engine": config.engine.model_validate(ENGINES[engine])})
        model, tokenizer = open_model(config.model)
        renderer, arithmetics = Renderer(tokenizer), arithmetic(precision, model.device)
        policy = Policy(model, "none", reference=False, precision=arithmetics)
        sampler: Any = make_engine(config, policy.actor, renderer.stop_ids, arithmetics)
        sampler.load(policy.weights(), 1)
        collector = Collector(config, renderer)
        try:
            batch = pack([one for _ in range(BATCHES) for one in collector.collect(sampler)])
        finally:
            collector.close()
            if hasattr(sampler, "close"):
                sampler.close()
    return policy.logprobs(batch, config.update.micro_tokens) - batch.logprobs


if __name__ == "__main__":
    main()
