"""Rows in one line, read by a model, are what they are when it reads each by itself."""

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3MoeConfig,
    RobertaConfig,
    StableLmConfig,
)

from turnwise.attention import ATTENTION
from turnwise.lines import Line, paths
from turnwise.models import arithmetic
from turnwise.trunk import Reader, last_mlp_at, prepare

SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)).eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(seed))


def line_of(beginning: Tensor, rests: list[Tensor]) -> Line:
    """Rows that all begin alike."""
    shared = len(beginning)
    positions = [torch.arange(shared), *(shared + torch.arange(len(rest)) for rest in rests)]
    lengths = torch.tensor([shared + len(rest) for rest in rests])
    known = torch.tensor([0, *[shared] * (len(rests) - 1)])
    own = lengths - known
    return Line(torch.cat([beginning, *rests]), torch.cat(positions), own, lengths, paths(own, known))


@pytest.mark.parametrize("shared", [0, 1, 20])
@pytest.mark.parametrize("lengths", [[5], [1, 1], [3, 40, 17, 1], [64, 64], [200, 3, 3, 9, 3]])
def test_a_line_is_read_as_its_rows_are(way, shared, lengths):
    model = llama()
    beginning, rests = ids(shared), [ids(length, seed=number + 1) for number, length in enumerate(lengths)]
    with torch.no_grad():
        expected = [model.model(torch.cat([beginning, rest])[None]).last_hidden_state[0, shared:] for rest in rests]
        prepare(model)
        places = torch.arange(shared, shared + sum(lengths))
        found = Reader(model.model)(line_of(beginning, rests), places)
    assert torch.allclose(found, torch.cat(expected), atol=1e-5)


def test_gradients_of_all_rows_meet_in_their_beginning(way):
    apart, together = llama(), llama()
    beginning, rests = ids(20), [ids(length, seed=length) for length in (3, 9, 6)]
    for rest in rests:
        apart.model(torch.cat([beginning, rest])[None]).last_hidden_state[0, -1].sum().backward()
    prepare(together)
    lasts = 20 + torch.tensor([3, 12, 18]) - 1
    Reader(together.model)(line_of(beginning, rests), lasts).sum().backward()
    for one, other in zip(apart.model.parameters(), together.model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-4 * float(one.grad.abs().max()))


def test_a_prepared_model_still_generates_and_reads_as_before():
    plain, prepared = llama(), llama()
    prepare(prepared)
    prompts = ids(2, 7)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    for model in (plain, prepared):
        assert model(prompts, attention_mask=mask).logits.shape == (2, 7, 50)
    assert torch.allclose(plain(prompts, attention_mask=mask).logits, prepared(prompts, attention_mask=mask).logits)
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 5, "pad_token_id": 0}
    assert torch.equal(plain.generate(prompts, **options), prepared.generate(prompts, **options))


def test_the_last_perceptron_runs_at_some_places_alone():
    model = llama()
    tokens, places = ids(3, 8), (torch.tensor([0, 2, 2]), torch.tensor([7, 0, 3]))
    with torch.no_grad():
        whole = model.model(tokens).last_hidden_state[places]
        with last_mlp_at(model.model, places):
            assert torch.allclose(model.model(tokens).last_hidden_state[places], whole, atol=1e-6)
        assert torch.equal(model.model(tokens).last_hidden_state[places], whole)  # the hooks have gone


def test_an_architecture_with_other_names_is_read_whole():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    row = ids(9)
    with torch.no_grad():
        expected = model.transformer(row[None]).last_hidden_state[0]
        prepare(model)
        found = Reader(model.transformer)(line_of(row[:0], [row]), torch.arange(9))
    assert torch.allclose(found, expected, atol=1e-5)


def test_nothing_is_dropped_while_activations_are_checkpointed():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4))
    prepare(model)
    row = ids(9)
    line, places = line_of(row[:0], [row]), torch.arange(9)
    sampled = Reader(model.eval().transformer)(line, places)
    assert torch.equal(Reader(model.train().transformer)(line, places), sampled)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1, num_key_value_heads=2),
        MistralConfig(**SMALL, sliding_window=4),  # whose config names no layers
    ],
    ids=lambda config: config.model_type,
)
def test_sliding_windows_are_refused(config):
    with pytest.raises(ValueError, match="sliding_attention"):
        prepare(AutoModelForCausalLM.from_config(config))


def test_a_window_that_is_not_used_is_none():
    model = AutoModelForCausalLM.from_config(MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=None))
    prepare(model)
    assert model.config._attn_implementation == ATTENTION


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LlamaConfig(**SMALL, final_logit_softcapping=30.0), "final_logit_softcapping"),
        (GraniteConfig(**SMALL, logits_scaling=8.0), "logits_scaling"),
        (CohereConfig(**SMALL), "logit_scale"),
    ],
)
def test_a_model_that_changes_its_logits_after_the_head_is_refused(config, name):
    with pytest.raises(ValueError, match=rf"{config.model_type} changes its logits \({name}\)"):
        prepare(AutoModelForCausalLM.from_config(config))


def test_positions_that_depend_on_other_rows_are_refused():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = Phi3Config(**SMALL, sliding_window=None, pad_token_id=0, rope_parameters=rope)
    with pytest.raises(ValueError, match=r"phi3 has positions \(longrope\)"):
        prepare(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("config", [StableLmConfig(**SMALL, num_key_value_heads=4), RobertaConfig(**SMALL)])
def test_a_model_that_reads_a_line_otherwise_than_its_rows_is_refused(config):
    """The one loses what it is told of the rows on the way to attention, the other looks ahead."""
    config.initializer_range = 0.2
    with pytest.raises(ValueError, match=f"{config.model_type} cannot be trained .* otherwise than each by itself"):
        prepare(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("kind", [MixtralConfig, OlmoeConfig, Qwen3MoeConfig])
def test_mixtures_of_experts_read_lines(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SMALL, num_key_value_heads=2, head_dim=8, num_experts_per_tok=2))
    rests = [ids(3), ids(9)]
    with torch.no_grad():
        expected = [model.model(torch.cat([ids(5), rest])[None]).last_hidden_state[0, -1] for rest in rests]
        prepare(model)
        found = Reader(model.model)(line_of(ids(5), rests), torch.tensor([7, 16]))
    assert torch.allclose(found, torch.stack(expected), atol=1e-5)


def test_a_scale_of_one_changes_nothing():
    model = AutoModelForCausalLM.from_config(GraniteConfig(**SMALL, logits_scaling=1.0))
    prepare(model)
    assert model.config._attn_implementation == ATTENTION


@pytest.mark.parametrize(
    ("processor", "tiles", "fast"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, False, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_bf16": True}, False, False),  # which says so, and is slow
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_bf16": True}, True, True),
        ({}, False, False),
    ],
)
def test_precision_is_bf16_only_where_it_is_faster(monkeypatch, processor, tiles, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    assert isinstance(arithmetic("auto", torch.device("cpu")), torch.autocast) == fast
    assert isinstance(arithmetic("bf16", torch.device("cpu")), torch.autocast)
    assert not isinstance(arithmetic("fp32", torch.device("cpu")), torch.autocast)
