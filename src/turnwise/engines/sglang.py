"""SGLang's own API: ids in, ids and log-probs out (`/generate`), and weights from a folder (written for 0.5.23)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from secrets import token_hex
from typing import Any

from turnwise.engines.servers import Http, Piece, ServerFailure, WrongWeights, make_piece, understanding
from turnwise.types import Finish, Sampling

_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length"}


class SGLangServer:
    """The server at an address, such as http://127.0.0.1:30000.

    Its log-probs are of the whole distribution at the sampling temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB is
    set. It heeds seeds with `--enable-deterministic-inference` only. It stops at the ends it knows besides `stop_ids`.
    """

    def __init__(self, url: str, stop_ids: frozenset[int]):
        self._http = Http(url)
        self.name = self._http.url
        self._stop_ids = stop_ids
        self._loaded = False
        self._mark = token_hex(4)  # of our weights, among those of other runs that should not be here

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        body = {"input_ids": list(prompt_ids), "sampling_params": self._parameters(sampling)}
        seen = 0
        async with aclosing(self._http.events("/generate", {**body, "return_logprob": True, "stream": True})) as events:
            async for event in events:
                if "error" in event:
                    raise ServerFailure(f"the server at {self.name} failed: {event['error']}")
                with understanding(self.name, "SGLang 0.5"):
                    ids, facts = event["output_ids"], event["meta_info"]
                    # Whether events hold all tokens so far or the new ones alone is an option of the server.
                    old = len(ids) - (facts["completion_tokens"] - seen)
                    piece = self._piece(ids, facts, max(old, 0), version)
                if old < 0:  # a busy server may send the newest of several events alone
                    raise ServerFailure(f"the server at {self.name} left out {-old} tokens of a reply")
                seen += len(piece.token_ids)
                yield piece

    def _piece(self, ids: Sequence[int], facts: Mapping[str, Any], old: int, version: int) -> Piece:
        """The tokens behind so many `old` ones."""
        if self._loaded and facts["weight_version"] != f"{self._mark}.{version}":
            raise WrongWeights(f"the server at {self.name} came back with other weights")
        reason = facts["finish_reason"] and facts["finish_reason"]["type"]
        if reason is not None and reason not in _FINISH:
            raise ServerFailure(f"the server at {self.name} broke off: {facts['finish_reason']}")
        scored = [one[0] for one in facts["output_token_logprobs"][old:]]
        return make_piece(self.name, ids[old:], scored, reason and _FINISH[reason], self._stop_ids)

    def _parameters(self, sampling: Sampling) -> dict[str, Any]:
        return {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": sorted(self._stop_ids),
            "sampling_seed": sampling.seed,
        }

    def ready(self) -> bool:
        return self._http.answers("/health_generate")

    def load(self, weights: Path, version: int) -> None:
        """What the server is still sampling is aborted, and what it cached is forgotten."""
        body = {"model_path": str(weights), "weight_version": f"{self._mark}.{version}", "abort_all_requests": True}
        self._http.post("/update_weights_from_disk", {**body, "flush_cache": True})
        self._loaded = True

    def close(self) -> None:
        """Whoever started it stops it."""
