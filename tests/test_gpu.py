"""What runs on a GPU alone, on a stand-in: nothing is mixed, what is recorded asks for no numbers, all comes out."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from threading import Event

import pytest
import torch
from engines.test_decoder import model_of, sampled, surprise
from gpu import CUDA, OnGPU, standing_in, waits
from test_attention import LENGTHS, Stand, read_and_learn, stand_in_for_flash, varlen_attn
from test_cli import recipe  # noqa: F401  (a fixture)
from test_kernels import KINDS, LEARNING, assert_read_alike, read_and_learned
from test_resume import figures
from test_trunk import llama
from torch import Tensor

from benchmarks import qwen3b
from turnwise import gpu as formulas
from turnwise.config import Config
from turnwise.engines import replay
from turnwise.engines.local import LocalEngine
from turnwise.family import FAMILY
from turnwise.policy import Policy
from turnwise.recipe import load_config
from turnwise.train import Training, train
from turnwise.trunk import prepare


def record(compute: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """As CUDA graphs do: what is found is always in the same place, and no number is asked for."""
    found = compute()

    def again() -> None:
        asked = len(waits)
        found.copy_(compute())
        assert waits[asked:] == []

    return again, found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replay, "record", record)
    monkeypatch.setattr(formulas, "_compiled", lambda formula: formula)
    with standing_in(monkeypatch):
        yield


def test_it_refuses_what_a_gpu_refuses(gpu):
    there, here = torch.arange(3.0, device="cuda"), torch.arange(3.0)
    assert there.device == CUDA
    for mixed in (lambda: there + here, lambda: torch.cat([here, there]), lambda: here[there > 1]):
        with pytest.raises(RuntimeError, match="on the GPU"):
            mixed()
    assert (there + here.to(CUDA)).tolist() == [0, 2, 4]
    assert (there[here > 1] + torch.tensor(1.0)).cpu().tolist() == [3]
    there += 1
    assert not isinstance(there.cpu(), OnGPU)
    assert there.tolist() == [1, 2, 3]
    assert waits


def test_where_no_kernel_can_be_compiled_formulas_are_computed_as_they_stand(monkeypatch):
    def fail(_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(formulas, "_compiled", cache(formulas._compiled.__wrapped__))
    monkeypatch.setattr(formulas, "_can_compile", cache(formulas._can_compile.__wrapped__))
    given = torch.randn(3, 8)
    with (
        standing_in(monkeypatch),
        pytest.warns(UserWarning, match=r": Failed to find C compiler. \(needed"),
    ):
        found = formulas.swiglu(given.to(CUDA))
    assert torch.equal(found.here, formulas.swiglu(given))


@pytest.mark.parametrize("kind", FAMILY)
def test_the_engine_samples_what_the_module_does(gpu, kind):
    module = model_of(kind)
    engine = LocalEngine(model_of(kind).to(CUDA), frozenset(), nullcontext())
    assert engine._replays
    for version in range(2):
        engine.load({}, version)
        assert surprise(module, sampled(engine)).max() < 1e-5


def test_passes_of_one_token_are_recorded(gpu, monkeypatch):
    passes: list[int] = []
    monkeypatch.setattr(replay, "record", lambda *given: passes.append(1) or record(*given))
    engine = LocalEngine(model_of("qwen2").to(CUDA), frozenset(), nullcontext())
    for version in range(3):
        engine.load({}, version)
        sampled(engine)
        assert 1 <= len(passes) <= 4  # for 8, 4, 2 rows and one, whatever is asked for, and by whichever weights


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("flash", [False, True], ids=["side by side", "behind one another"])
def test_lines_are_read_as_on_the_processor(gpu, monkeypatch, flash, shared, lengths):
    model = llama()
    prepare(model)
    expected, wanted = read_and_learn(model, shared, lengths)
    if flash:
        stand_in_for_flash(monkeypatch)
    found, gradients = read_and_learn(model.to(CUDA), shared, lengths)
    assert torch.allclose(found.cpu(), expected, atol=1e-5)
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-6 + 1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize(("kind", "others"), KINDS)
def test_its_formulas_say_what_the_processor_says(gpu, monkeypatch, kind, others, learning, shared):
    expected = read_and_learned(kind, others, shared, learning)
    stand_in_for_flash(monkeypatch)
    assert_read_alike(read_and_learned(kind, others, shared, learning, "cuda"), expected)


def test_what_gates_let_through_is_not_kept_for_the_backward_pass(gpu, monkeypatch):
    stand_in_for_flash(monkeypatch)
    kept: list[int] = []  # how wide all is that is kept a token

    def note(one: Tensor) -> Tensor:
        kept.extend(one.shape[1:] if one.dim() == 2 and one.shape[0] % 64 == 0 else ())
        return one

    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        read_and_learned("qwen2", {"intermediate_size": 44}, 20, "all weights", "cuda")
    assert 88 in kept
    assert 44 not in kept


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("way", ["full", "lora"])
def test_a_step_of_the_3b_shape_changes_what_it_changes_on_the_processor(gpu, monkeypatch, way, checkpointing):
    monkeypatch.setattr(qwen3b, "arithmetic", lambda *_: nullcontext())
    size = qwen3b.SMALL
    job, config = qwen3b.make_job(size), qwen3b.configure(way, size, 200, checkpointing)

    def trained(device: torch.device) -> list[Tensor]:
        policy = qwen3b.make_policy(config, size, device)
        optimizers = qwen3b.Optimizers(policy, config.update)
        engine = LocalEngine(policy.actor, frozenset(), nullcontext())
        assert engine._replays == (device == CUDA)
        for number in range(2):
            assert qwen3b.step(config, job, policy, optimizers, engine, number)[2] < 1e-5
        return [weight.detach().cpu() for weight in policy.trained_parameters()]

    for one, other in zip(trained(CUDA), trained(torch.device("cpu")), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("way", ["full", "lora"])
def test_lines_are_read_and_learned_from_without_waiting(gpu, monkeypatch, way):
    """Else a GPU would have nothing to do while the next line is prepared."""

    def attend(*given: Tensor, **options: object) -> Tensor:
        noted = len(waits)
        found = varlen_attn(*given, **options)
        del waits[noted:]  # of what stands in
        return found

    stand_in_for_flash(monkeypatch)
    monkeypatch.setattr(Stand, "varlen_attn", attend)
    size, config = qwen3b.SMALL, qwen3b.configure(way, qwen3b.SMALL, 100)
    policy = qwen3b.make_policy(config, size, CUDA)
    optimizers, engine = qwen3b.Optimizers(policy, config.update), LocalEngine(policy.actor, frozenset(), nullcontext())
    batch = qwen3b.step(config, qwen3b.make_job(size), policy, optimizers, engine, 0)[0]
    every = torch.arange(len(batch.row_lengths))
    scored, learned = list(batch.micros(every, 100, finals=True)), list(batch.micros(batch.trained_rows, 100, False))
    assert min(len(scored), len(learned)) > 2
    waits.clear()
    for role in ("actor", "critic"):
        with policy.at_work(role):
            for micro in scored:
                policy.values(micro)
            for micro in learned:
                (policy(micro).logprobs if role == "actor" else policy.values(micro)[0]).sum().backward()
    assert waits == []


def test_a_run_goes_as_on_the_processor_and_can_be_resumed(gpu, monkeypatch, tmp_path, recipe):  # noqa: F811
    kept = Policy.weights
    # The stand-in's tensors have no address, by which transformers tells tied weights.
    monkeypatch.setattr(Policy, "weights", lambda self: {name: one.cpu() for name, one in kept(self).items()})

    def configured(name: str, device: str) -> Config:
        return load_config(str(recipe), [f"run={tmp_path / name}", f"model.device={device}"])

    assert train(configured("cpu", "cpu"))
    assert train(configured("cuda", "cuda"))
    cut = configured("cut", "cuda")
    first = Training(cut, resume=False)
    first.warm_up(Event())
    first.step()
    first.save()
    first.collector.close()
    assert train(cut, resume=True)
    expected = [
        {name: pytest.approx(x, rel=1e-3, abs=1e-5) if isinstance(x, float) else x for name, x in line.items()}
        for line in figures(tmp_path / "cpu")
    ]
    for name in ("cuda", "cut"):
        assert figures(tmp_path / name) == expected
