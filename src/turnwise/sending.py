"""Tensors on their way to a device."""

import torch
from torch import Tensor


def sent(given: Tensor, device: torch.device) -> Tensor:
    """It on the device. Nobody waits: an ordinary copy to a GPU ends when all that was asked for before it is done."""
    if device.type != "cuda" or given.is_cuda:
        return given.to(device)
    return given.pin_memory().to(device, non_blocking=True)
