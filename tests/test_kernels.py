"""The kernels say, forwards and backwards, what PyTorch says of the same formulas; so does what is built of them."""

import pytest
import torch
from engines.test_decoder import model_of
from test_trunk import ids, line_of
from torch import Tensor, nn

from turnwise import fused, kernels
from turnwise.family import FAMILY
from turnwise.trunk import prepare, read


def luck(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_alike(one: Tensor, other: Tensor, given: list[Tensor]) -> None:
    """Two results, and what a random slope of theirs means for what they were made of."""
    slope = luck(*one.shape, seed=9).detach()
    assert torch.allclose(one, other, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(one, given, slope), torch.autograd.grad(other, given, slope), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8)])
def test_a_norm_is_pytorchs(shape):
    given, weight = luck(*shape), luck(8, seed=1)
    mine = kernels.norm(given, weight, 0.1, torch.float32)
    assert_alike(mine, nn.functional.rms_norm(given, (8,), weight, 0.1), [given, weight])


def test_pairs_are_rotated():
    given, phase = luck(5, 3, 8), luck(5, 1, 4, seed=1).detach()
    one, other = given[..., 0::2], given[..., 1::2]
    turned = [one * phase.cos() - other * phase.sin(), one * phase.sin() + other * phase.cos()]
    mine = kernels.rotated(given, torch.polar(torch.ones_like(phase), phase))
    assert_alike(mine, torch.stack(turned, -1).flatten(-2), [given])


def test_gates_open():
    given = luck(5, 12)
    assert_alike(kernels.gated(given), nn.functional.silu(given[:, :6]) * given[:, 6:], [given])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("order", [None, [3, 0, 4, 1, 2]])
def test_a_product_of_several_layers_is_that_of_each(biased, order):
    given, layers = luck(7, 4), [nn.Linear(4, 3, biased), nn.Linear(4, 2, biased)]
    places = order and torch.tensor(order)
    plain = torch.cat([layer(given) for layer in layers], 1)
    plain = plain if order is None else plain[:, order]
    packed = fused._pack(layers, torch.float32, places)
    assert_alike(kernels.product(given, packed), plain, [given, *packed.parameters])


def test_a_frozen_product_has_no_gradient_but_lets_it_through():
    given, layer = luck(7, 4), nn.Linear(4, 3).requires_grad_(False)
    kernels.product(given, fused._pack([layer], torch.float32, None)).sum().backward()
    assert layer.weight.grad is None
    assert torch.allclose(given.grad, layer.weight.sum(0).expand(7, 4))


KINDS = [
    *((kind, {}) for kind in FAMILY),
    ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("qwen2", {"num_hidden_layers": 1, "rms_norm_eps": 0.1}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
]


@pytest.mark.parametrize("long", [30, 512])
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize(("kind", "others"), KINDS)
def test_a_line_is_read_and_learned_from_as_by_the_modules(monkeypatch, kind, others, shared, long):
    """At some places, out of order, and with rows that nobody asks about."""
    places = shared + torch.tensor([44, 2, 0, 45, 59])
    line = line_of(ids(shared), [ids(length, seed=length) for length in (3, 40, 1, 17)])
    monkeypatch.setattr(kernels, "LONG", long)
    results = []
    for ours in (True, False):
        monkeypatch.setattr(fused, "can_read", lambda trunk, ours=ours: ours)
        model = model_of(kind, **others)
        prepare(model)
        found = read(model.get_decoder(), line, places)
        found.backward(luck(*found.shape, seed=3).detach())
        results.append((found, dict(model.get_decoder().named_parameters())))
    (mine, my_own), (theirs, their_own) = results
    assert torch.allclose(mine, theirs, atol=1e-4)
    for name, parameter in my_own.items():
        scale = float(their_own[name].grad.abs().max())
        assert torch.allclose(parameter.grad, their_own[name].grad, atol=1e-3 * max(scale, 1e-3)), name


def test_in_bf16_it_is_as_close_as_the_modules_in_bf16(monkeypatch):
    line = line_of(ids(20), [ids(length, seed=length) for length in (30, 40, 17)])
    places = 20 + torch.arange(87)
    model = model_of("qwen2", hidden_size=256)
    prepare(model)
    with torch.no_grad():
        exact = read(model.get_decoder(), line, places)
        gaps = []
        for ours in (True, False):
            monkeypatch.setattr(fused, "can_read", lambda trunk, ours=ours: ours)
            with torch.autocast("cpu", torch.bfloat16):
                gaps.append((read(model.get_decoder(), line, places).float() - exact).abs())
    assert 1e-4 < gaps[0].mean() < 1.5 * gaps[1].mean()


def test_other_models_are_left_to_the_modules():
    model = model_of("llama")
    assert fused.can_read(model.get_decoder())
    assert not fused.can_read(model_of("gemma").get_decoder())
    assert not fused.can_read(model_of("llama").bfloat16().get_decoder())
    model.gradient_checkpointing_enable()
    assert not fused.can_read(model.get_decoder())
