"""The same as `collect`, in this process on one GPU, by a model of the size of Qwen2.5-0.5B.

Its weights are random, and it has the embedded model's tokenizer and so its small vocabulary: the work depends on
neither. Replies are as long as they may be, since such a model hardly ever stops.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from benchmarks.collect import CASES, measure
from turnwise.models import EMBEDDED, pick_device

SHAPE: Mapping[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cases", nargs="*", default=[*CASES], choices=CASES, help="by the ends of their records' names"
    )
    options = parser.parse_args(arguments)
    if pick_device("auto").type != "cuda":
        sys.exit("collect_gpu needs a GPU; python -m benchmarks collect measures the same without one")
    cases = {name: replace(CASES[name], rounds=options.rounds) for name in options.cases}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        measure("collect_gpu", {"model": {"path": folder}}, cases)


def make_model(folder: Path) -> None:
    """Write it into a folder as `model.path` takes it: 360M parameters in fp32, 1.4 GB."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED["tiny"])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPE, vocab_size=len(tokenizer), max_position_embeddings=4096, tie_word_embeddings=True)
    Qwen2ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
