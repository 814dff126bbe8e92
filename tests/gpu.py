"""A stand-in for a GPU: tensors that say that they are on one, are computed here, and refuse what a GPU refuses.

PyTorch takes them for tensors of its device "meta", which has shapes and no numbers; the numbers lie beside them. It
is noted where on a GPU somebody would have to wait: for a number, or for a copy. No kernel of a GPU is tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

CUDA, META = torch.device("cuda:0"), torch.device("meta")
COPIES = ("aten::copy_", "aten::_to_copy")  # between the two
PLACES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")  # may come from the processor
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")

waits: list[str] = []  # for what the processor has waited since the stand-in began


class OnGPU(Tensor):
    """`here` is the tensor with the numbers."""

    here: Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, here: Tensor) -> "OnGPU":
        made = Tensor._make_wrapper_subclass(
            cls, here.size(), here.stride(), here.storage_offset(), dtype=here.dtype, device=META
        )
        made.here = here
        return made

    def __deepcopy__(self, memo: Any) -> Tensor:
        copy = OnGPU(self.here.detach().clone())
        return nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Operations that are given no tensor may make one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Whoever names the GPU is given the other device, as this PyTorch may know of no GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.tolist and isinstance(args[0], OnGPU):
            waits.append("tolist")
            return args[0].here.tolist()
        if func is Tensor.pin_memory:
            return args[0]
        if func in (torch.tensor, torch.as_tensor) and _is_gpu(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(META)
        args = [META if _is_gpu(one) else one for one in args]
        return func(*args, **{name: META if _is_gpu(one) else one for name, one in kwargs.items()})


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is a GPU."""
    move = nn.Module.to
    monkeypatch.setattr(
        nn.Module, "to", lambda self, *to, **kinds: _move(self) if _is_gpu(*to[:1]) else move(self, *to, **kinds)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    waits.clear()
    with _Calls(), _Operations():
        yield


def _move(model: nn.Module) -> nn.Module:
    """Its tensors become others, since these are of another class; those that are one stay one."""
    moved: dict[int, Tensor] = {}
    for part in model.modules():
        for tensors in (part._parameters, part._buffers):
            for name, one in tensors.items():
                if one is not None and id(one) not in moved:
                    there = one.detach().to(CUDA)
                    moved[id(one)] = nn.Parameter(there, one.requires_grad) if tensors is part._parameters else there
                tensors[name] = None if one is None else moved[id(one)]
    return model


def _is_gpu(named: object = None) -> bool:
    return isinstance(named, str | torch.device) and str(named).startswith("cuda")


def _hurries(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a copy is on its way and nobody waits for it."""
    names = [one.name for one in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}.get("non_blocking", False)


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """On the numbers; what comes of tensors there, or is to be there, is there."""
    name = func._schema.name
    if torch.is_inference_mode_enabled() and func._can_decompose():  # without it PyTorch has done so
        with _Operations():
            return func.decompose(*args, **kwargs)
    given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
    there = [one for one in given if isinstance(one, OnGPU)]
    here = [one for one in given if not isinstance(one, OnGPU)]
    assert not any(one.is_meta for one in here), f"{name}: a tensor without numbers"
    may_mix = name in COPIES or (name in PLACES and isinstance(args[0], OnGPU))
    if there and not may_mix and any(one.dim() for one in here):
        raise RuntimeError(f"{name}: some tensors are on the GPU, others are not")
    if there and name in READS:
        waits.append(name)
    stays = bool(there)
    if (wanted := kwargs.get("device")) is not None:
        stays = torch.device(wanted).type in ("meta", "cuda")  # the latter in a backward pass, where no call is seen
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "aten::copy_":
        stays = isinstance(args[0], OnGPU)
    if name in COPIES and given and stays != isinstance(given[-1], OnGPU) and not _hurries(func, args, kwargs):
        waits.append(name)
    numbers = tree_map(lambda one: one.here if isinstance(one, OnGPU) else one, (args, kwargs))
    found = func(*numbers[0], **numbers[1])
    known = {id(one.here): one for one in there}  # what was changed in place is what it was

    def kept(one: Any) -> Any:
        if not isinstance(one, Tensor) or not stays:
            return one
        return known[id(one)] if id(one) in known else OnGPU(one)

    return tree_map(kept, found)
