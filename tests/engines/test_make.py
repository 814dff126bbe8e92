"""A recipe names its engine, and gets that one or a sentence."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from brains import STOP, hashed
from fake_server import Fake
from helpers import play_config
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from turnwise.config import Config
from turnwise.engines.client import LLMServerClient
from turnwise.engines.local import LocalEngine
from turnwise.engines.make import make_engine
from turnwise.protocols import Engine
from turnwise.recipe import parse_config
from turnwise.types import Sampling

PROMPT = (1, 2, 3)


def make(tiny: Any, tmp_path: Path, engine: dict[str, Any]) -> Engine:
    rollout = {"max_prompt_tokens": 40, "max_reply_tokens": 24}
    config = parse_config({"run": str(tmp_path / "run"), "engine": engine, "rollout": rollout})
    return make_engine(config, tiny[0], frozenset([STOP]), nullcontext())


def first(weight: float) -> int:
    return hashed(PROMPT, weight)[0]


def sampled(engine: Engine) -> Sequence[int]:
    return asyncio.run(engine.generate(PROMPT, Sampling(1))).token_ids


def test_without_a_word_tokens_are_sampled_here(tiny, tmp_path):
    engine = make(tiny, tmp_path, {})
    assert isinstance(engine, LocalEngine) and engine.model is tiny[0]
    assert play_config().engine == Config().engine


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_servers_are_found_at_their_addresses(tiny, tmp_path, wire):
    fakes = [Fake(wire), Fake(wire)]
    engine = make(tiny, tmp_path, {"use": wire, "urls": [fake.url for fake in fakes], "max_failures": 1})
    assert isinstance(engine, LLMServerClient) and list(engine.counters) == [fake.url for fake in fakes]
    engine.load({"weight": torch.tensor(2.0)}, 1)
    assert sampled(engine) == (first(2.0),)
    assert (tmp_path / "run" / "engine" / "weights" / "000001" / "model.safetensors").is_file()
    for fake in fakes:
        fake.close()
    engine.close()


def test_runs_that_share_a_weights_folder_keep_out_of_each_others_way(tiny, tmp_path):
    fake = Fake("vllm")
    told = {"use": "vllm", "urls": [fake.url], "weights": str(tmp_path / "shared")}
    one, other = make(tiny, tmp_path / "one", told), make(tiny, tmp_path / "other", told)
    one.load({"weight": torch.tensor(2.0)}, 1)
    other.load({"weight": torch.tensor(3.0)}, 1)
    one.load({"weight": torch.tensor(2.0)}, 2)
    left = sorted(file.parent.name for file in (tmp_path / "shared").rglob("model.safetensors"))
    assert left == ["000001", "000002"]
    assert sampled(one) == (first(2.0),)
    for engine in (one, other, fake):
        engine.close()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter whose vLLM is the fake one."""
    script = tmp_path / "python"
    fake = Path(__file__).parent.parent / "fake_vllm.py"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} {tmp_path / "notes"} "$@"\n')
    script.chmod(0o755)
    return script


def test_a_server_is_started_killed_and_started_again_with_the_newest_weights(tiny, tmp_path, python):
    known = {"stream-interval": [1, 2], "hf-overrides": {"a": False}, "enable-prefix-caching": False}
    options = {"max-model-len": 64, "enforce-eager": True, **known}
    engine = make(tiny, tmp_path, {"use": "vllm", "launch": 1, "python": str(python), "options": options})
    assert isinstance(engine, LLMServerClient)
    engine.load({"weight": torch.tensor(3.0)}, 1)
    assert sampled(engine) == (first(3.0),) != (first(0.0),)
    (url,) = engine.counters
    pid, _, told = (tmp_path / "notes").read_text().strip().partition(" ")
    port = url.rpartition(":")[2]
    flags = f"--port {port}", "--host 127.0.0.1", "--dtype float32", "--no-enable-chunked-prefill"
    flags = (*flags, "--stream-interval 1 2 ", '--hf-overrides {"a": false} ', "--no-enable-prefix-caching ")
    for flag in (*flags, "--max-model-len 64", "--enforce-eager "):
        assert flag in f"{told} "
    os.kill(int(pid), signal.SIGKILL)
    assert sampled(engine) == (first(3.0),)
    assert engine.counters[url].failures >= 1
    assert len((tmp_path / "notes").read_text().splitlines()) == 2
    engine.close()


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"use": "vllm"}, r"engine\.urls is \[\] and engine\.launch is 0; give one of the two"),
        ({"use": "vllm", "urls": ["http://127.0.0.1:1"], "launch": 1}, "give one of the two"),
        ({"use": "vllm", "launch": -1}, r"engine\.urls is \[\] and engine\.launch is -1; give one of the two"),
        ({"use": "vllm", "urls": ["http://127.0.0.1:1"], "options": {"a": 1}}, r"engine\.options .* do nothing"),
        ({"use": "vllm", "urls": ["http://127.0.0.1:1"], "start_s": 5}, r"engine\.start_s do nothing"),
        ({"use": "vllm", "launch": 1, "options": {"port": 1, "host": "::"}}, r"engine\.options has host and port, but"),
        ({"use": "vllm", "launch": 2, "python": "/bin/false"}, r"ended with code 1; see .*vllm-0\.log"),
        ({"use": "vllm", "launch": 1, "python": "/no/python"}, r"ended with code .*vllm-0\.log"),
        ({"use": "sglang"}, r"engine\.urls is empty; give the address of a server"),
        ({"use": "sglang", "urls": ["here"]}, r"engine\.urls holds 'here'"),
        ({"use": "vllm", "urls": 3}, r"engine\.urls is 3; it must be a list"),
    ],
)
def test_a_mistake_is_one_sentence(tiny, tmp_path, engine, words):
    with pytest.raises(ValueError, match=words) as caught:
        make(tiny, tmp_path, engine)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"use": "vlm"}, "engine.use is 'vlm'; did you mean 'vllm'?"),
        ({"lunch": 1}, "unknown key engine.lunch"),
        ({"use": "vllm", "lunch": 1}, "unknown key engine.lunch; did you mean 'launch'?"),
        ({"use": "vllm", "trained": 1}, "unknown key engine.trained"),
    ],
)
def test_a_recipe_is_checked_before_anything_starts(engine, words):
    with pytest.raises(ValueError) as caught:
        parse_config({"engine": engine})
    assert words in str(caught.value)


@pytest.mark.parametrize("frozen", [False, True])
def test_sglang_takes_no_experts_that_learn(tmp_path, frozen):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    }
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=50, **sizes, **heads)).requires_grad_(not frozen)
    engine = {"use": "sglang", "urls": ["http://127.0.0.1:9"]}
    if frozen:
        assert isinstance(make([model], tmp_path, engine), LLMServerClient)
    else:
        with pytest.raises(ValueError, match=r"engine\.use=sglang is untried with a mixture whose experts learn"):
            make([model], tmp_path, engine)
