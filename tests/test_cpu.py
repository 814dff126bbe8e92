"""The loops say what PyTorch's formulas say, in any number of threads and in every process."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from turnwise import cpu

KINDS = [torch.float32, torch.bfloat16]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 6, 1120])
def test_gates_are_computed_in_fp32_and_rounded_once(kind, width):
    given, grad = (3 * noise(130, 2 * width)).to(kind), noise(130, width, seed=1).to(kind)
    exact = given.double().requires_grad_()
    wanted = nn.functional.silu(exact[:, :width]) * exact[:, width:]
    (given_grad,) = torch.autograd.grad(wanted, exact, grad.double())
    near = {"rtol": 2**-8 if kind == torch.bfloat16 else 1e-5, "atol": 1e-6}
    torch.testing.assert_close(cpu.swiglu(given).double(), wanted.detach(), **near)
    torch.testing.assert_close(cpu.swiglu_backward(given, grad).double(), given_grad, **near)


def test_gates_that_are_far_open_or_shut_stay_finite():
    gates = torch.tensor([[-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30]])
    given = torch.cat([gates, torch.ones_like(gates)], 1)
    assert cpu.swiglu(given)[0, 2:].tolist() == pytest.approx([0, 0, 88, 200, 1e30], rel=1e-6, abs=1e-30)
    assert cpu.swiglu(given).isfinite().all()
    assert cpu.swiglu_backward(given, torch.ones_like(gates)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_none(kind):
    """An update that breaks is to be seen."""
    given = torch.tensor([[torch.nan, 1.0, 1.0, torch.nan]]).to(kind)
    assert cpu.swiglu(given).isnan().tolist() == [[True, True]]
    weight = torch.ones(4)
    total, found, scale = cpu.rms_norm(given.float(), None, weight, 0.0, kind)
    assert found.isnan().all()
    assert cpu.rms_norm_backward(found, total, weight, scale, None, kind, True)[0].isnan().all()


def test_numbers_are_rounded_as_pytorch_rounds_them():
    """Those between two of bf16 too: to the even one."""
    bits = torch.arange(0x3F80_0000, 0x3F84_0000, 0x1000, dtype=torch.int32)
    numbers = torch.cat([bits, bits + 1, bits - 1]).view(torch.float32)[:, None]
    # The norm of 1 is 1, so what comes out is the weight.
    for number in numbers:
        _, found, _ = cpu.rms_norm(torch.ones(1, 1), None, number, 0.0, torch.bfloat16)
        assert found.item() == number.bfloat16().item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (65, 63), (130, 448), (64, 3, 64)])
@pytest.mark.parametrize("adds", [True, False])
def test_norms_are_pytorchs(kind, shape, adds):
    given, weight = noise(*shape), noise(shape[-1], seed=1)
    added = noise(*shape, seed=2).to(kind) if adds else None
    grad, beside = noise(*shape, seed=3).to(kind), noise(*shape, seed=4) if adds else None
    exact, own = given.double().requires_grad_(), weight.double().requires_grad_()
    total = exact if added is None else exact + added.double()
    wanted = nn.functional.rms_norm(total, shape[-1:], own, 1e-6)
    grads = [grad.double()] if beside is None else [grad.double(), beside.double()]
    outputs = [wanted] if beside is None else [wanted, total]
    given_grad, of_weight = torch.autograd.grad(outputs, [exact, own], grads)
    summed, found, scale = cpu.rms_norm(given, added, weight, 1e-6, kind)
    mine, again, of_mine = cpu.rms_norm_backward(grad, summed, weight, scale, beside, kind, True)
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(summed.double(), total.detach(), **near)
    torch.testing.assert_close(found, wanted.detach().to(kind), rtol=2**-7, atol=1e-5)
    torch.testing.assert_close(mine.double(), given_grad, **near)
    assert again is not None and of_mine is not None
    torch.testing.assert_close(of_mine.double(), of_weight, **near)
    assert torch.equal(again, mine.to(kind))
    frozen, _, none = cpu.rms_norm_backward(grad, summed, weight, scale, beside, kind, False)
    assert torch.equal(frozen, mine)
    assert none is None


@pytest.mark.parametrize("apart", [noise(5, 16)[:, ::2], noise(8, 5).mT])
def test_rows_that_lie_apart_are_read_as_they_are(apart):
    together = apart.contiguous()
    assert torch.equal(cpu.swiglu(apart), cpu.swiglu(together))
    grad = noise(5, 4)
    assert torch.equal(cpu.swiglu_backward(apart, grad), cpu.swiglu_backward(together, grad))
    weight = noise(8, seed=1)
    for mine, theirs in zip(
        cpu.rms_norm(apart, apart, weight, 0.1, torch.bfloat16),
        cpu.rms_norm(together, together, weight, 0.1, torch.bfloat16),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("words", [torch.tensor([1, 1, 0, 2, 1]), None])
@pytest.mark.parametrize("angles", [noise(5, 6, seed=1), None])
def test_what_is_laid_out_comes_back(angles, words):
    """<gather(x), y> = <x, scatter_add(y)>, for any x and y: one is the grad of the other."""
    at = torch.tensor([[4, 0, -1], [0, 0, 3]])
    side, given, rows = cpu.Side(slice(1, 3), at, angles, words), noise(5, 4, 6), noise(2, 2, 3, 6, seed=2)
    (found,) = cpu.gather(given, side, torch.float32)
    sums = torch.zeros_like(given)
    cpu.scatter_add(rows, side, sums)
    torch.testing.assert_close((found * rows).sum(), (given * sums).sum())
    assert found[0, :, 2].eq(0).all()
    assert sums[:, [0, 3]].eq(0).all()
    for kinds in (KINDS, KINDS[::-1], [torch.float32] * 2):
        for kind, rows in zip(kinds, cpu.gather(given, side, *kinds), strict=True):
            assert torch.equal(rows, found.to(kind))


def digest() -> str:
    """Of what the loops make of some numbers, to the last bit."""
    made = hashlib.sha256()
    for kind in KINDS:
        given, weight, grad = noise(200, 448), noise(448, seed=1), noise(200, 448, seed=2).to(kind)
        total, found, scale = cpu.rms_norm(given, grad, weight, 1e-6, kind)
        of_gates = cpu.swiglu_backward(found, grad[:, :224])
        side = cpu.Side(slice(1, 7), torch.arange(-1, 199).view(20, 10) // 2, given[:, :64])
        vectors = found.view(200, 7, 64)
        rows = cpu.gather(vectors, side, kind)
        sums = torch.zeros_like(vectors)
        cpu.scatter_add(rows[0], side, sums)
        for one in (total, found, scale, cpu.swiglu(found), of_gates, *rows, sums):
            made.update(one.float().numpy().tobytes())
        for one in cpu.rms_norm_backward(grad, total, weight, scale, given, kind, True):
            assert one is not None
            made.update(one.float().numpy().tobytes())
    return made.hexdigest()


def test_bits_do_not_hang_on_threads_nor_on_who_compiled(threads, tmp_path):
    torch.set_num_threads(1)
    mine = digest()
    torch.set_num_threads(2)
    assert digest() == mine
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_cpu; print(test_cpu.digest())"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    apart = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):  # who compiles, and who finds what was compiled
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=apart)
        assert done.stdout.strip() == mine
