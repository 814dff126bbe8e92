"""vLLM over HTTP: ids in, ids and log-probs out, and weights from a folder (written for 0.32.0).

`/inference/v1/generate` needs `--enable-scale-out`; new weights need VLLM_SERVER_DEV_MODE=1, whose endpoints do what
anybody tells them: such a server belongs on the loopback interface.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from secrets import token_hex
from typing import Any

from turnwise.engines.launch import Launched, free_port
from turnwise.engines.servers import Http, Piece, ServerFailure, WrongWeights, make_piece, understanding
from turnwise.types import Finish, Sampling

_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length"}
LOGPROBS = "processed_logprobs"  # at the sampling temperature
_KIND = "vLLM 0.32"
_EXTENSION, _EXTENSION_AT = "turnwise_worker.Heads", Path(__file__).parent / "in_vllm"
# On a processor, 0.32.0 dies of a seed where a prompt is read in parts: it cannot take back a number that it drew.
_ON_A_PROCESSOR = {"no-enable-chunked-prefill": True, "worker-extension-cls": _EXTENSION}


def parameters(sampling: Sampling, stop_ids: frozenset[int]) -> dict[str, Any]:
    """Sampling as vLLM's own SamplingParams say it. What would not be scored as it is sampled is a ValueError."""
    if sampling.top_p < 1 or sampling.top_k:
        raise ValueError(
            f"vLLM's log-probs would be of what top_p={sampling.top_p:g} and top_k={sampling.top_k} leave, and not "
            "of the whole distribution; set rollout.top_p=1 and rollout.top_k=0, or engine.use=local"
        )
    return {  # all of them: what is left out, the model's generation_config.json fills in
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # where a reply ends, the stop ids say
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
    }


def refuse_too_short(who: str, longest: int, tokens: int) -> None:
    """A ValueError where vLLM would cut replies short, or refuse prompts, that the recipe allows."""
    if longest < tokens:
        raise ValueError(
            f"{who} reads {longest} tokens at most (max-model-len), fewer than rollout.max_prompt_tokens and "
            f"rollout.max_reply_tokens allow together, {tokens}; let it read as many, or lower one of them"
        )


def finish_of(name: str, reason: str | None) -> Finish | None:
    """What ended a reply; None while it goes on."""
    if reason is not None and reason not in _FINISH:
        raise ServerFailure(f"the server at {name} broke off: {reason}")
    return _FINISH[reason] if reason else None


class VLLMServer:
    """The server at an address, such as http://127.0.0.1:8000."""

    def __init__(self, url: str, stop_ids: frozenset[int], tokens: int = 0, launched: Launched | None = None):
        """`tokens` is how many the longest prompt and its reply may have together; one that reads fewer is refused."""
        self._http = Http(url)
        self.name = self._http.url
        self._stop_ids = stop_ids
        self._tokens = tokens
        self._launched = launched
        self._on_a_processor: bool | None = None  # None: not asked yet
        self._loaded = False
        self._salt = token_hex(8)  # no version, which an earlier run may have had for other weights
        self._mark = token_hex(4)  # of our weights, among those of other runs that should not be here

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        body = {
            "token_ids": list(prompt_ids),
            "sampling_params": parameters(sampling, self._stop_ids),
            "cache_salt": self._salt,  # keys and values are kept, but never read under other weights
            "stream": True,
        }
        async with aclosing(self._http.events("/inference/v1/generate", body)) as events:
            async for event in events:
                if "error" in event:
                    raise ServerFailure(f"the server at {self.name} failed: {event['error']}")
                with understanding(self.name, _KIND):
                    pieces = [self._piece(choice, version) for choice in event["choices"]]
                for piece in pieces:
                    yield piece

    def _piece(self, choice: Mapping[str, Any], version: int) -> Piece:
        # The last piece tells which weights the reply is of.
        if self._loaded and any(
            span["version"] != f"{self._mark}.{version}" for span in choice["weight_versions"] or ()
        ):
            raise WrongWeights(f"the server at {self.name} came back with other weights")
        scored = [one["logprob"] for one in choice["logprobs"]["content"]]
        finish = finish_of(self.name, choice["finish_reason"])
        return make_piece(self.name, choice["token_ids"], scored, finish, self._stop_ids)

    def ready(self) -> bool:
        return self._http.answers("/health")

    def load(self, weights: Path, version: int) -> None:
        if self._on_a_processor is None:
            self._on_a_processor = self._examine()
        self._http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}})
        if self._on_a_processor:
            self._http.post("/collective_rpc", {"method": "turnwise_pack_heads"})
        self._http.post("/update_weight_version", {"new_version": f"{self._mark}.{version}"})
        self._loaded, self._salt = True, token_hex(8)

    def _examine(self) -> bool:
        """Whether the server runs on a processor; one that would answer wrongly is refused."""
        told = self._http.get("/server_info?config_format=json")
        with understanding(self.name, _KIND):
            config = told["vllm_config"]
            mode, longest = (config["model_config"][key] for key in ("logprobs_mode", "max_model_len"))
            device = config["device_config"]["device"]
            extension = config["parallel_config"]["worker_extension_cls"]
        if mode != LOGPROBS:
            raise ValueError(
                f"the server at {self.name} scores tokens as {mode}, at another temperature than it samples at; "
                f"start it with --logprobs-mode {LOGPROBS}"
            )
        refuse_too_short(f"the server at {self.name}", longest, self._tokens)
        if device == "cpu" and extension != _EXTENSION:
            raise ValueError(
                f"the server at {self.name} runs on a processor, where vLLM keeps the old weights of tied heads; "
                f"start it with PYTHONPATH={_EXTENSION_AT} and --worker-extension-cls {_EXTENSION}"
            )
        return device == "cpu"

    def wait(self, start_s: float) -> None:
        """Until a server that we started is ready."""
        assert self._launched is not None
        self._launched.wait(self.ready, start_s)

    def close(self) -> None:
        if self._launched is not None:
            self._launched.close()


def _flag(name: str, value: Any) -> list[str]:
    """Of a command line, as vLLM reads switches, groups of keys and lists."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


def start(
    model: str,
    dtype: str,
    device: str,
    stop_ids: frozenset[int],
    tokens: int,
    log: Path,
    python: str,
    options: Mapping[str, Any],
) -> VLLMServer:
    """Start a server on a loopback port, which is not ready yet. `options` are its command line's, without dashes."""
    if chosen := {"host", "port"} & options.keys():
        raise ValueError(
            f"engine.options has {' and '.join(sorted(chosen))}, but a launched server gets a loopback port of its "
            "own; leave that out, or start the server yourself and name it in engine.urls"
        )
    port = free_port()
    flags: dict[str, Any] = {
        "model": model,
        "dtype": dtype,
        "host": "127.0.0.1",
        "port": port,
        "enable-scale-out": True,
        "logprobs-mode": LOGPROBS,
        "generation-config": "vllm",
        **(_ON_A_PROCESSOR if device == "cpu" else {}),
        **options,
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in flags.items():
        command += _flag(name, value)
    path = os.pathsep.join([str(_EXTENSION_AT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": path}
    return VLLMServer(f"http://127.0.0.1:{port}", stop_ids, tokens, Launched(command, log, variables))
