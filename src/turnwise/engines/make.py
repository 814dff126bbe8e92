"""Engines as a recipe names them, such as `engine: {use: vllm, launch: 1}`. The keys are the arguments below.

Every recipe is checked against these, so what they make is imported when it is made.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config import Config
from turnwise.protocols import Engine

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from turnwise.engines.servers import Server

_START_S = 900.0


@dataclass(frozen=True)
class Trained:
    """What an engine samples from, as the trainer has it."""

    model: PreTrainedModel
    stop_ids: frozenset[int]
    precision: AbstractContextManager[object]
    folder: Path  # for what servers read and write
    tokens: int  # of the longest prompt and its reply

    @property
    def kind(self) -> torch.dtype:
        """Of the products, and so of the weights that servers get."""
        import torch

        return torch.float32 if isinstance(self.precision, nullcontext) else torch.bfloat16


def make_engine(
    config: Config, model: PreTrainedModel, stop_ids: frozenset[int], precision: AbstractContextManager[object]
) -> Engine:
    """The engine of a run; one that samples elsewhere has the model's weights after the first `load`."""
    tokens = config.rollout.max_prompt_tokens + config.rollout.max_reply_tokens
    folder = Path(config.run) / "engine"
    return config.engine.make("engine", trained=Trained(model, stop_ids, precision, folder, tokens))


def local(trained: Trained) -> Engine:
    """In this process, from the very module that is trained."""
    from turnwise.engines.local import LocalEngine

    return LocalEngine(trained.model, trained.stop_ids, trained.precision)


def vllm(
    trained: Trained,
    urls: Sequence[str] = (),
    launch: int = 0,
    python: str = sys.executable,
    options: Mapping[str, Any] | None = None,
    start_s: float = _START_S,
    weights: str = "",
    timeout_s: float = 300.0,
    max_failures: int = 3,
    wait_s: float = 900.0,
) -> Engine:
    """vLLM servers: those at `urls`, or as many as `launch` says, started here and kept running.

    Launched ones run under `python`, which has vLLM, get `options` on their command line, and must be ready after
    `start_s`. `weights` is a folder that all servers see, by default one in the run's folder. The others limit
    LLMServerClient.
    """
    from turnwise.engines.vllm import VLLMServer, start

    if bool(urls) == (launch > 0):
        raise ValueError(f"engine.urls is {list(urls)} and engine.launch is {launch}; give one of the two")
    if urls and (options or python != sys.executable or start_s != _START_S):
        raise ValueError(
            "engine.options and engine.python and engine.start_s do nothing for servers at engine.urls; leave them out"
        )
    about = trained.stop_ids, trained.tokens
    servers: list[VLLMServer] = [VLLMServer(url, *about) for url in urls]
    try:
        for number in range(launch):
            log = trained.folder / f"vllm-{number}.log"
            servers.append(start(*_shape(trained), *about, log, python, options or {}))
        for server in servers[len(urls) :]:
            server.wait(start_s)
        return _client(servers, trained, weights, timeout_s, max_failures, wait_s)
    except BaseException:
        for server in servers:
            server.close()
        raise


def vllm_inside(
    trained: Trained,
    options: Mapping[str, Any] | None = None,
    weights: str = "",
    timeout_s: float = 300.0,
    max_failures: int = 3,
    wait_s: float = 900.0,
) -> Engine:
    """vLLM without a server, where the trainer's own environment has it. `options` are vLLM's engine arguments."""
    from turnwise.engines.vllm_inside import VLLMInside

    inside = VLLMInside(*_shape(trained), trained.stop_ids, options or {}, trained.tokens)
    return _client([inside], trained, weights, timeout_s, max_failures, wait_s)


def _shape(trained: Trained) -> tuple[str, str, str]:
    """The model whose shape and first weights vLLM has, its precision, and the device."""
    dtype = str(trained.kind).removeprefix("torch.")
    return str(trained.model.name_or_path), dtype, trained.model.device.type


def _name(run: Path) -> str:
    """Of a run among others that use the same folder."""
    place = f"{platform.node()}:{run.absolute()}"  # as containers may have it at the same path
    return f"{run.name}-{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"


def sglang(
    trained: Trained,
    urls: Sequence[str] = (),
    weights: str = "",
    timeout_s: float = 300.0,
    max_failures: int = 3,
    wait_s: float = 900.0,
) -> Engine:
    """SGLang servers at `urls`. `weights` is a folder that all of them see, by default one in the run's folder."""
    from turnwise.engines.sglang import SGLangServer

    if not urls:
        raise ValueError("engine.urls is empty; give the address of a server, such as [http://127.0.0.1:30000]")
    if any(".experts." in name and one.requires_grad for name, one in trained.model.named_parameters()):
        raise ValueError(
            "engine.use=sglang is untried with a mixture whose experts learn, and leaves out what it does not know; "
            "set engine.use=vllm or engine.use=local, or train adapters (model.lora)"
        )
    servers = [SGLangServer(url, trained.stop_ids) for url in urls]
    return _client(servers, trained, weights, timeout_s, max_failures, wait_s)


def _client(
    servers: Sequence[Server], trained: Trained, weights: str, timeout_s: float, max_failures: int, wait_s: float
) -> Engine:
    from turnwise.engines.client import LLMServerClient
    from turnwise.engines.weights import WeightsFolder

    folder = Path(weights) / _name(trained.folder.parent) if weights else trained.folder / "weights"
    return LLMServerClient(servers, WeightsFolder(folder, trained.kind, trained.model), timeout_s, max_failures, wait_s)
