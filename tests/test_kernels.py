"""The kernels say, forwards and backwards, what PyTorch says of the same formulas; so does what is built of them."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from engines.test_decoder import model_of
from test_trunk import ids, line_of
from torch import Tensor, nn

from turnwise import fused, gpu, kernels
from turnwise.config import LoRAConfig
from turnwise.family import FAMILY
from turnwise.lora import Adapters
from turnwise.trunk import Reader, prepare


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_alike(one: Tensor, other: Tensor, given: list[Tensor]) -> None:
    """Two results, and what a random grad of theirs means for what they were made of."""
    grad = noise(*one.shape, seed=9).detach()
    assert torch.allclose(one, other, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(one, given, grad), torch.autograd.grad(other, given, grad), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8)])
def test_a_norm_is_pytorchs(shape):
    given, weight = noise(*shape), noise(8, seed=1)
    mine = kernels.rms_norm(given, weight, 0.1, torch.float32)
    assert_alike(mine, nn.functional.rms_norm(given, (8,), weight, 0.1), [given, weight])


@pytest.mark.parametrize("kind", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_sum_and_its_norm_are_pytorchs(monkeypatch, on_gpu, kind):
    given, weight = noise(128, 8), noise(8, seed=1)
    added = None if kind is None else noise(128, 8, seed=2).detach().to(kind).requires_grad_()
    total = given * 1.0 if added is None else given + added
    plain = torch.cat([total, nn.functional.rms_norm(total, (8,), weight, 0.1)])
    inputs = [one for one in (given, added, weight) if one is not None]
    if on_gpu:
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(gpu, "_compiled", lambda formula: formula)
    assert_alike(torch.cat(kernels.add_rms_norm(given, added, weight, 0.1, torch.float32)), plain, inputs)


def test_gates_open():
    given = noise(5, 12)
    assert_alike(kernels.swiglu(given), nn.functional.silu(given[:, :6]) * given[:, 6:], [given])


def test_a_gpus_formula_of_a_judgement_is_the_processors():
    logits, targets = noise(5, 12), torch.tensor([0, 11, 3, 3, 7])
    mine = torch.stack(kernels._LogprobsAndEntropy.apply(logits, targets, 0.7))  # pyright: ignore[reportArgumentType]
    assert_alike(mine, torch.stack(kernels.logprobs_and_entropy(logits, targets, 0.7)), [logits])


@pytest.mark.parametrize("shape", [(128, 8), (64, 3, 8)])
def test_a_gpus_formula_of_a_norm_is_the_processors(shape):
    given, weight, grad = noise(*shape), noise(8, seed=1), noise(*shape, seed=2).detach()
    found = kernels.rms_norm(given, weight, 0.1, torch.float32)
    wanted = torch.autograd.grad(found, [given, weight], grad)
    with torch.no_grad():
        _, mine, scale = gpu.rms_norm(given, None, weight, 0.1, torch.float32)
        given_grad, _ = gpu.rms_norm_backward(grad, given, weight, scale, None, None)
        grads = given_grad, gpu.rms_norm_weight_grad(grad, given, scale, 64)
    assert torch.allclose(mine, found, atol=1e-5)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(grads, wanted, strict=True))


def test_a_gpus_formula_of_gates_is_the_processors():
    given, grad = noise(5, 12), noise(5, 6, seed=2).detach()
    found = kernels.swiglu(given)
    (wanted,) = torch.autograd.grad(found, [given], grad)
    assert torch.allclose(gpu.swiglu(given), found, atol=1e-6)
    again, given_grad = gpu.swiglu_and_grad(given, grad)
    assert torch.allclose(again, found, atol=1e-6)
    assert torch.allclose(given_grad, wanted, atol=1e-6)
    assert torch.allclose(gpu.swiglu_and_grad(given, None)[0], found, atol=1e-6)


def turned(given: Tensor, angles: Tensor) -> Tensor:
    (one, other), (cosine, sine) = given.chunk(2, -1), angles[:, None].chunk(2, -1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)


@pytest.mark.parametrize("still", [0, 1])
def test_halves_are_rotated(still):
    given, phase = noise(5, 3, 8), noise(5, 4, seed=1).detach()
    angles = phase.cos(), phase.sin()
    wanted = torch.cat([turned(given[:, : 3 - still], torch.cat(angles, -1)), given[:, 3 - still :]], 1)
    assert_alike(kernels.rotary(given, *(x[:, None] for x in angles), still), wanted, [given])


@pytest.mark.parametrize("long", [10, 512])
@pytest.mark.parametrize("of_words", [True, False])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (6, 2), (3, 1)])
def test_attention_is_pytorchs_of_what_was_turned(monkeypatch, heads, groups, of_words, long):
    """Of rows of several lengths that share keys, some of them filled up, among tokens that do not look."""
    monkeypatch.setattr(kernels, "LONG", long)
    words = torch.tensor([3, 1, 1, 0, 2, 3, 1, 0, 0]) if of_words else None
    queries, memory = (noise(4 if of_words else 9, many, 8, seed=many) for many in (heads, 2 * groups))
    of_queries, of_keys = (noise(9, 8, seed=seed).detach() for seed in (1, 2))
    rows = [[0, 1, 2, 3], [0, 1, 4], [5, 6, 7]]  # the tokens of each; the last of them look
    asked, keys = torch.tensor([[2, 3], [4, -1], [7, 6]]), torch.full((3, 16), -1)
    for row, tokens in zip(keys, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    last = torch.tensor([[2, 3], [2, 0], [2, 1]])
    parts = [torch.tensor([0, 2]), torch.tensor([1])]
    blocks = [kernels.block(asked[part], last[part], keys[part]) for part in parts]
    found = kernels.attention(queries, memory, kernels.View(blocks, of_queries, of_keys, words))

    of_tokens, read = (x if words is None else x[words] for x in (queries, memory))
    looking, (key, value) = turned(of_tokens, of_queries), read.chunk(2, 1)
    key, value = (x.repeat_interleave(heads // groups, 1) for x in (turned(key, of_keys), value))
    wanted = torch.zeros(9, heads, 8)
    for token, row, stop in ((2, 0, 3), (3, 0, 4), (4, 1, 3), (7, 2, 3), (6, 2, 2)):
        seen = rows[row][:stop]
        weights = torch.einsum("hd,chd->hc", looking[token], key[seen]).softmax(-1)
        wanted = wanted.index_put((torch.tensor(token),), torch.einsum("hc,chd->hd", weights, value[seen]))
    assert_alike(found, wanted.flatten(1), [queries, memory])


def test_slopes_of_a_key_that_many_rows_look_at_meet_in_fp32():
    """In bf16 a sum of like numbers stops growing at 256 of them."""
    rows, keys, still = torch.arange(1000)[:, None], torch.zeros(1000, 1, dtype=torch.long), torch.tensor([1.0, 0.0])
    angles = still.repeat_interleave(4).expand(1000, 8).contiguous()
    view = kernels.View([kernels.block(rows, torch.zeros_like(rows), keys)], angles, angles)
    memory = noise(1000, 2, 8).detach().bfloat16().requires_grad_()
    kernels.attention(noise(1000, 1, 8), memory, view).sum().backward()
    assert memory.grad is not None
    assert memory.grad[0, 1].tolist() == [1000] * 8


@pytest.mark.parametrize("biased", [True, False])
def test_a_product_of_several_layers_is_that_of_each(biased):
    given, layers = noise(7, 4), [nn.Linear(4, 3, biased), nn.Linear(4, 2, biased)]
    plain = torch.cat([layer(given) for layer in layers], 1)
    packed = fused._pack([*map(fused._linear, layers)], torch.float32)
    assert_alike(kernels.linear(given, packed), plain, [given, *packed.parameters])


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("learns_before", [False, True])
def test_gates_and_the_product_behind_them_are_pytorchs(monkeypatch, learns_before, on_gpu):
    """Also where nothing before them learns, as with adapters of the product alone in the first layer."""
    given, layer = noise(5, 12).detach().requires_grad_(learns_before), nn.Linear(6, 3)
    plain = layer(nn.functional.silu(given[:, :6]) * given[:, 6:])
    packed = fused._pack([fused._linear(layer)], torch.float32)
    if on_gpu:
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(gpu, "_compiled", lambda formula: formula)
    inputs = [*layer.parameters(), *([given] if learns_before else [])]
    assert_alike(kernels.swiglu_linear(given, packed), plain, inputs)


def test_a_frozen_product_has_no_gradient_but_lets_it_through():
    given, layer = noise(7, 4), nn.Linear(4, 3).requires_grad_(False)
    kernels.linear(given, fused._pack([fused._linear(layer)], torch.float32)).sum().backward()
    assert layer.weight.grad is None
    assert torch.allclose(given.grad, layer.weight.sum(0).expand(7, 4))


KINDS = [
    *((kind, {}) for kind in FAMILY),
    ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("qwen2", {"num_hidden_layers": 1, "rms_norm_eps": 0.1}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
]


LEARNING = ["all weights", "activations twice", "adapters"]


def read_and_learned(kind: str, others: dict[str, Any], shared: int, learning: str, device: str = "cpu"):
    """At some places, out of order, and with rows that nobody asks about: what is found, and gradients by name."""
    places = (shared + torch.tensor([44, 2, 0, 45, 59])).to(device)
    line = line_of(ids(shared), [ids(length, seed=length) for length in (3, 40, 1, 17)])
    model = model_of(kind, **others).to(device)
    adapters = Adapters(model, ["one", "other"], LoRAConfig(rank=3, alpha=6.0), 0) if learning == "adapters" else None
    if adapters is not None:
        torch.manual_seed(1)
        for weight in adapters.parameters("other"):
            weight.data.copy_(0.1 * torch.randn(weight.shape))
    prepare(model)
    if learning == "activations twice":
        model.train().gradient_checkpointing_enable({"use_reentrant": False})
    with adapters.use("other") if adapters else nullcontext():
        found = Reader(model.get_decoder())(line.to(torch.device(device)), places)
    found.backward(noise(*found.shape, seed=3).detach().to(device))
    named = model.get_decoder().named_parameters()
    return found, {name: weight.grad for name, weight in named if weight.grad is not None}


def assert_read_alike(mine: Any, theirs: Any) -> None:
    assert torch.allclose(mine[0].cpu(), theirs[0], atol=1e-4)
    assert mine[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        scale = float(gradient.abs().max())
        assert torch.allclose(mine[1][name].cpu(), gradient, atol=1e-3 * max(scale, 1e-3)), name


@pytest.mark.parametrize("long", [30, 512])
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize(("kind", "others"), KINDS)
def test_a_line_is_read_and_learned_from_as_by_the_modules(monkeypatch, kind, others, learning, shared, long):
    monkeypatch.setattr(kernels, "LONG", long)
    mine = read_and_learned(kind, others, shared, learning)
    monkeypatch.setattr(fused, "can_read", lambda trunk: False)
    assert_read_alike(mine, read_and_learned(kind, others, shared, learning))


@pytest.mark.parametrize(("learning", "times"), [("all weights", 3), ("activations twice", 5)])
def test_what_is_not_kept_is_computed_twice(monkeypatch, learning, times):
    """But for the last layer, which comes first in the backward pass."""
    seen: list[Tensor] = []
    swiglu = kernels.swiglu
    monkeypatch.setattr(kernels, "swiglu", lambda given: seen.append(given) or swiglu(given))
    read_and_learned("qwen2", {}, 20, learning)
    assert len(seen) == times + 3  # the three layers have been tried


@pytest.mark.parametrize("layers", [1, 2])
def test_in_bf16_it_is_as_close_as_the_modules_in_bf16(monkeypatch, layers):
    """Of one layer nothing is computed for words alone, since places are asked about."""
    line = line_of(ids(20), [ids(length, seed=length) for length in (30, 40, 17)])
    places = 20 + torch.arange(87)
    model = model_of("qwen2", hidden_size=256, num_hidden_layers=layers)
    prepare(model)
    with torch.no_grad():
        exact = Reader(model.get_decoder())(line, places)
        gaps = []
        for ours in (True, False):
            monkeypatch.setattr(fused, "can_read", lambda trunk, ours=ours: ours)
            with torch.autocast("cpu", torch.bfloat16):
                gaps.append((Reader(model.get_decoder())(line, places).float() - exact).abs())
    assert 1e-4 < gaps[0].mean() < 1.5 * gaps[1].mean()


def test_other_models_are_left_to_the_modules():
    model = model_of("llama")
    assert fused.can_read(model.get_decoder())
    assert not fused.can_read(model_of("gemma").get_decoder())
    assert not fused.can_read(model_of("llama").bfloat16().get_decoder())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize(("kind", "others"), KINDS)
def test_on_a_gpu_it_is_as_close_as_the_modules(monkeypatch, kind, others, learning, shared):
    found, gradients = read_and_learned(kind, others, shared, learning)
    gaps: list[list[float]] = []
    for ours in (True, False):
        monkeypatch.setattr(fused, "can_read", lambda trunk, ours=ours: ours)
        with torch.autocast("cuda", torch.bfloat16):
            mine = read_and_learned(kind, others, shared, learning, "cuda")
        assert mine[1].keys() == gradients.keys()
        pairs = [(mine[0].detach().float().cpu(), found.detach())]
        pairs += [(mine[1][name].cpu(), gradient) for name, gradient in gradients.items()]
        gaps.append([float((one - other).norm() / (other.norm() + 1e-3)) for one, other in pairs])
    assert gaps[0][0] < 1.5 * gaps[1][0] + 1e-3
    assert sum(gaps[0]) < 1.5 * sum(gaps[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_judgements_are_the_processors():
    logits, targets = noise(70, 1000), torch.arange(70)
    mine = torch.stack(kernels.logprobs_and_entropy(logits.cuda(), targets.cuda(), 0.7)).cpu()
    assert_alike(mine, torch.stack(kernels.logprobs_and_entropy(logits, targets, 0.7)), [logits])
