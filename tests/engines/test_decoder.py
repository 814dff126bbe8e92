"""The decoder says what the module says that it stands in for, and stands in for no other."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from turnwise.config import LoRAConfig
from turnwise.engines import decoder
from turnwise.engines.cache import Cache
from turnwise.engines.decoder import Decoder
from turnwise.engines.local import LocalEngine
from turnwise.family import FAMILY
from turnwise.lora import Adapters
from turnwise.types import Generation, Sampling

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "sliding_window": None,
}
BEGIN = [7, 11, 13] * 15  # what the long prompts have in common
PROMPTS = [[3], [5, 6, 7, 8, 9], *([*BEGIN, n, *range(2 * n)] for n in range(1, 4)), [90]]


def model_of(kind: str, **others: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **others}))
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):  # that are all alike in a new model
            nn.init.normal_(parameter, 1.0, 0.2)
    return model.eval()


def sampled(engine: LocalEngine) -> list[Generation]:
    async def ask() -> list[Generation]:
        requests = [engine.generate(prompt, Sampling(4 + n, seed=n)) for n, prompt in enumerate(PROMPTS)]
        return await asyncio.gather(*requests)

    return asyncio.run(ask())


def surprise(model: PreTrainedModel, replies: list[Generation]) -> torch.Tensor:
    """How far the log-probs of replies are from the module's, a number a token."""
    gaps: list[torch.Tensor] = []
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([[*prompt, *reply.token_ids]])).logits[0].log_softmax(-1)
        mine = logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        gaps.append((mine - torch.tensor(reply.logprobs)).abs())
    return torch.cat(gaps)


def test_what_a_large_vocabulary_has_no_table_of_is_computed(monkeypatch):
    table = sampled(LocalEngine(model_of("qwen2"), frozenset(), nullcontext()))
    monkeypatch.setattr(decoder, "_WORDS", 96)
    computed = sampled(LocalEngine(model_of("qwen2"), frozenset(), nullcontext()))
    assert [one.token_ids for one in table] == [one.token_ids for one in computed]
    gaps = [a - b for x, y in zip(table, computed, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)]
    assert max(map(abs, gaps)) < 1e-5


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"num_key_value_heads": 6, "tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, "rms_norm_eps": 0.1},
    ],
    ids=["plain", "a key for every query", "biases", "stretched positions"],
)
@pytest.mark.parametrize("kind", FAMILY)
def test_it_computes_what_the_module_computes(kind, others):
    model = model_of(kind, **others)
    engine = LocalEngine(model, frozenset(), nullcontext())
    assert isinstance(engine._decoder, Decoder)
    module = model_of(kind, **others)  # the engine's reads several rows as one
    assert surprise(module, sampled(engine)).max() < 1e-5


@pytest.mark.parametrize("packed", [True, False])
def test_in_bf16_it_is_as_close_as_the_module_in_bf16(monkeypatch, packed):
    available = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if packed and not available:
        pytest.skip("this processor has no products of packed weights in bf16")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: packed)
    model, gaps = model_of("qwen2", hidden_size=256), []
    for fits in (True, False):
        monkeypatch.setattr(Decoder, "fits", lambda model, bf16, fits=fits: fits)
        gaps.append(surprise(model_of("qwen2", hidden_size=256), sampled(in_bf16(model))))
    assert 1e-4 < gaps[0].max() < 1.5 * gaps[1].max()
    assert gaps[0].mean() < 1.5 * gaps[1].mean()


def in_bf16(model: PreTrainedModel) -> LocalEngine:
    return LocalEngine(model, frozenset(), torch.autocast("cpu", torch.bfloat16))


def test_new_weights_are_taken_on_load():
    model = model_of("llama")
    engine = LocalEngine(model, frozenset(), nullcontext())
    before = sampled(engine)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine.load({}, 1)
    after = sampled(engine)
    assert [reply.logprobs for reply in before] != [reply.logprobs for reply in after]
    module = model_of("llama")
    module.load_state_dict(model.state_dict())
    assert surprise(module, after).max() < 1e-5


@pytest.mark.parametrize("kind", FAMILY)
def test_new_weights_lie_where_the_old_ones_lay(kind):
    """Where passes that a GPU has recorded look for them."""
    model = model_of(kind, attention_bias=True)
    held = Decoder(model, bf16=False)
    places = [tensor.data_ptr() for tensor in tensors_of(held)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    held.load()
    assert [tensor.data_ptr() for tensor in tensors_of(held)] == places
    for tensor, new in zip(tensors_of(held), tensors_of(Decoder(model, bf16=False)), strict=True):
        assert torch.equal(tensor, new)


def tensors_of(held: Decoder) -> list[torch.Tensor]:
    products = [part for one in held._layers for part in (one.qkv, one.out, one.gate_up, one.down)]
    found = [tensor for one in (*products, held._head) for tensor in (one._weight, one._bias)]
    return [tensor for tensor in (*found, *(one.head_norms for one in held._layers)) if tensor is not None]


@pytest.mark.parametrize("targets", [[], ["q_proj", "down_proj"]])
def test_adapters_in_use_are_added_to_the_weights(targets):
    model = model_of("qwen2")
    adapters = Adapters(model, ("actor", "critic"), LoRAConfig(rank=2, targets=targets), seed=0)
    with torch.no_grad():
        for name in ("actor", "critic"):
            for parameter in adapters.parameters(name):
                nn.init.normal_(parameter, 0.0, 0.2)
    engine = LocalEngine(model, frozenset(), nullcontext())
    assert isinstance(engine._decoder, Decoder)
    adapted = sampled(engine)
    with adapters.use(None):
        engine.load({}, 1)
    plain = sampled(engine)
    assert [reply.token_ids for reply in adapted] != [reply.token_ids for reply in plain]
    module = model_of("qwen2")
    assert surprise(module, plain).max() < 1e-5
    module.load_state_dict(adapters.merged("actor"))
    assert surprise(module, adapted).max() < 1e-5


def test_a_pass_of_one_token_a_row_looks_at_no_numbers():
    """So that it can be recorded: tensors of shapes alone raise where somebody asks for a number."""
    model = model_of("qwen3").to("meta")
    decoder, kept = Decoder(model, bf16=True), Cache(model.device)

    def read(count: int) -> torch.Tensor:
        kept.reserve(3, 64)
        ids = torch.zeros(3 * count, dtype=torch.long, device="meta")
        kept.aim(0, ids, [count] * 3)
        return decoder.logits(ids, ids, [count] * 3, kept, every=count == 1)

    with torch.inference_mode():
        assert read(1).shape == (3, 97)
        with pytest.raises(RuntimeError):  # a prompt's may
            read(9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", FAMILY)
def test_on_a_gpu_what_is_replayed_is_what_the_module_computes(kind):
    model = model_of(kind).cuda()
    engine = LocalEngine(model, frozenset(), nullcontext())
    assert engine._replays
    for version in range(2):
        engine.load({}, version)
        assert surprise(model_of(kind), sampled(engine)).max() < 1e-3


@pytest.mark.parametrize(
    "model",
    [
        lambda: model_of("gemma"),
        lambda: model_of("llama", hidden_act="gelu"),
        lambda: model_of("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        lambda: model_of("llama").bfloat16(),
    ],
    ids=["another family", "another activation", "positions that depend on the length", "weights in bf16"],
)
def test_it_stands_in_for_no_other_model(model):
    assert not Decoder.fits(model(), bf16=False)


def test_it_makes_no_second_copy_of_a_large_model_but_in_bf16(monkeypatch):
    model = model_of("llama")
    assert Decoder.fits(model, bf16=False)
    monkeypatch.setattr(decoder, "_SMALL", model.num_parameters() - 1)
    assert not Decoder.fits(model, bf16=False)
    assert Decoder.fits(model, bf16=True)
