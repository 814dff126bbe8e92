"""Attention in a line is the same however its rows are laid out."""

import pytest
import torch
from test_trunk import ids, line_of, llama
from torch import Tensor, nn

from turnwise import flash, fused
from turnwise.attention import attend
from turnwise.policy import Policy
from turnwise.trunk import Reader, prepare

LENGTHS = [[5], [1, 1], [3, 40, 17, 1], [64, 64]]  # the last fills its line up


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
    """What PyTorch's does on a GPU, row by row: causal from the end of a row on."""
    assert window_size == (-1, 0)
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert query.dtype == key.dtype == value.dtype
    assert key.shape == value.shape == (int(cu_seq_k[-1]), *key.shape[1:])
    assert len(query) == int(cu_seq_q[-1])
    assert enable_gqa or "enable_gqa" not in flash._OPTIONS
    lengths = [cuts.cpu().diff().tolist() for cuts in (cu_seq_q, cu_seq_k)]
    assert [max_q, max_k] == [max(row) for row in lengths]
    found = []
    parts = [x.split(cut) for x, cut in zip((query, key, value), (lengths[0], lengths[1], lengths[1]), strict=True)]
    for q, k, v in zip(*parts, strict=True):
        seen = torch.ones(len(q), len(k), dtype=torch.bool, device=query.device).tril(len(k) - len(q))
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        row = nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
        found.append(row.transpose(0, 1))
    return torch.cat(found)


class Stand:
    """In the place of PyTorch's module."""

    varlen_attn = staticmethod(varlen_attn)


def stand_in_for_flash(monkeypatch, grouped: bool = True) -> None:
    """Let the plain one above stand in; keys with fewer heads must be named to it, or it looks for itself."""
    monkeypatch.setattr(flash, "varlen", Stand)
    monkeypatch.setattr(flash, "_OPTIONS", {"scale", "window_size", *(["enable_gqa"] if grouped else [])})
    monkeypatch.setattr(flash, "takes", lambda query: True)


@pytest.fixture(params=[True, False], ids=["named", "seen"])
def standing_in(request, monkeypatch):
    """A function that lets it stand in from now on."""
    monkeypatch.setattr(fused, "can_read", lambda trunk: False)
    return lambda: stand_in_for_flash(monkeypatch, request.param)


def read_and_learn(model, shared: int, lengths: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Hidden states of all rows, and gradients of a sum of them that weighs each its own way."""
    rests = [ids(length, seed=number + 1) for number, length in enumerate(lengths)]
    line = line_of(ids(shared), rests).to(model.device)
    places = torch.arange(shared, shared + sum(lengths), device=model.device)
    model.zero_grad()
    hidden = Reader(model.model)(line, places).float()
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1)).to(model.device)
    (hidden * weights).sum().backward()
    return hidden.detach(), [p.grad.clone() for p in model.model.parameters()]


@pytest.mark.parametrize("shared", [0, 1, 20])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_rows_behind_one_another_are_those_side_by_side(standing_in, shared, lengths, checkpointed):
    model = llama()
    policy = Policy(model, "none", reference=False)
    if checkpointed:
        policy.train().checkpoint_activations()
    expected, wanted = read_and_learn(model, shared, lengths)
    standing_in()
    found, gradients = read_and_learn(model, shared, lengths)
    assert torch.allclose(found, expected, atol=1e-5)
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6 + 1e-4 * float(other.abs().max()))


def test_all_that_is_given_is_in_the_precision_of_products(standing_in):
    """Where queries and keys have been through rotary positions in fp32, and values have not."""
    model = llama()
    prepare(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected, _ = read_and_learn(model, 20, [3, 40])
        standing_in()
        found, _ = read_and_learn(model, 20, [3, 40])
    assert torch.allclose(found, expected, atol=0.05)


@pytest.mark.skipif("window_size" not in flash._OPTIONS, reason="this PyTorch has none that we ask")
def test_pytorchs_own_understands_what_it_is_asked(monkeypatch):
    """On tensors of shapes alone, which need no GPU."""
    model = llama()
    prepare(model)
    monkeypatch.setattr(flash, "takes", lambda query: True)
    monkeypatch.setattr(flash, "_arithmetic", lambda x: torch.bfloat16)
    model.to("meta", torch.bfloat16)
    line = line_of(ids(20), [ids(3), ids(40)]).to(torch.device("meta"))
    hidden = Reader(model.model)(line, torch.arange(20, 63, device="meta"))
    hidden.sum().backward()
    assert hidden.shape == (43, 32)
    assert all(parameter.grad is not None for parameter in model.model.parameters())


def test_a_processor_lays_rows_side_by_side():
    assert not flash.takes(torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_on_a_gpu_both_layouts_agree(monkeypatch, shared, lengths):
    model = llama().cuda()
    prepare(model)
    with torch.autocast("cuda", torch.bfloat16):
        assert flash.takes(torch.zeros(1, 2, 4, 8, device="cuda"))
        found, gradients = read_and_learn(model, shared, lengths)
        monkeypatch.setattr(flash, "takes", lambda query: False)
        expected, wanted = read_and_learn(model, shared, lengths)
    assert torch.allclose(found, expected, atol=0.05)
    for one, other in zip(gradients, wanted, strict=True):
        assert float((one - other).norm()) <= 0.05 * float(other.norm()) + 1e-6


@pytest.mark.parametrize("option", ["softcap", "s_aux", "position_bias"])
def test_an_attention_that_does_more_than_attend_is_refused(option):
    q = k = v = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match=f"its attention needs {option}"):
        attend(torch.nn.Module(), q, k, v, None, **{option: torch.zeros(1)})
