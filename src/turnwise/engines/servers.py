"""What a server of tokens must do, and what its backends share: lines of JSON over HTTP, and how they fail."""

import json
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from turnwise.types import Finish, Sampling

_TIMEOUT_S = 10.0  # of connecting, and of asking whether a server is ready
_LOAD_TIMEOUT_S = 900.0  # of reading new weights
_NONE = -9999.0  # what vLLM sends for a log-prob that is no number, or that it does not have
_WORDS = 300  # characters of a server's own words that are passed on


class ServerFailure(Exception):
    """A server did not answer as it should; another may. It is `gone` where no connection is left."""

    def __init__(self, reason: str, gone: bool = False):
        super().__init__(reason)
        self.gone = gone


class WrongWeights(ServerFailure):
    """The server was started anew in secret: all that it sampled for this request since it was asked is void."""

    def __init__(self, reason: str):
        super().__init__(reason, gone=True)


@dataclass(frozen=True)
class Piece:
    """The next tokens of a reply."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: Finish | None  # None: more follow


class Server(Protocol):
    """One server. What another server might do better is a ServerFailure, what none would a ValueError."""

    name: str

    def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        """Sample a reply with the weights of that version. Whoever stops reading stops the sampling."""
        ...

    def ready(self) -> bool:
        """Whether it answers; waits some seconds at most, or until one of ours that died is begun anew."""
        ...

    def load(self, weights: Path, version: int) -> None:
        """Sample from a folder of safetensors from now on."""
        ...

    def close(self) -> None:
        """Stop it, where we started it."""
        ...


@contextmanager
def understanding(name: str, kind: str) -> Iterator[None]:
    """What is missing from an answer, or of another type, is a ValueError that says whose answer it is."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the server at {name} does not answer as {kind} does ({error!r})") from error


def make_piece(
    name: str, token_ids: Sequence[int], logprobs: Sequence[Any], finish: Finish | None, stop_ids: frozenset[int]
) -> Piece:
    """Checked: one log-prob a token, and a finish where a stop token was sampled."""
    if len(logprobs) != len(token_ids):
        raise ValueError(
            f"the server at {name} sent {len(logprobs)} log-probs for {len(token_ids)} tokens, so nothing can be "
            "learnt from them; use a version of it that sends one for each"
        )
    if not all(isinstance(one, int | float) and math.isfinite(one) and one > _NONE for one in logprobs):
        raise ValueError(f"the server at {name} sent log-probs that are no numbers: {list(logprobs)[:5]}")
    if finish is None and token_ids and token_ids[-1] in stop_ids:
        finish = "stop"
    return Piece(token_ids, logprobs, finish)


def _is_place(parts: SplitResult) -> bool:
    """Whether an address names a host, and a port that can be one."""
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class Http:
    """HTTP to one server, a connection a request: to close it is how a request is stopped."""

    def __init__(self, url: str):
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ValueError(f"engine.urls holds a password or a query for {parts.hostname}; give the bare address")
        if parts.scheme not in ("http", "https") or not _is_place(parts) or parts.path.strip("/"):
            raise ValueError(f"engine.urls holds {url!r}; write the bare address, such as http://127.0.0.1:8000")
        try:
            import httpx2
        except ImportError as error:
            raise ValueError("servers are spoken to by httpx2: pip install -e '.[servers]'") from error
        self.url = url.rstrip("/")
        self._httpx = httpx2
        self._trust = httpx2.create_ssl_context()  # made once, since that takes longer than many a request

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Post, and read the server-sent events up to `[DONE]`."""
        timeout = self._httpx.Timeout(None, connect=_TIMEOUT_S)  # how long a reply may take is the client's business
        try:
            async with (
                self._httpx.AsyncClient(verify=self._trust, trust_env=False, timeout=timeout) as client,
                client.stream("POST", f"{self.url}{path}", json=dict(body)) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    self._refuse(path, response)
                async for event in self._httpx.EventSource(response):
                    if event.data == "[DONE]":
                        return
                    yield json.loads(event.data)
        except (self._httpx.ConnectError, self._httpx.ReadError, self._httpx.RemoteProtocolError) as error:
            raise ServerFailure(f"the server at {self.url} is gone ({error!r})", gone=True) from error
        except (self._httpx.HTTPError, self._httpx.SSEError, json.JSONDecodeError) as error:
            raise ServerFailure(f"the server at {self.url} cannot be understood ({error!r})") from error

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for something that may take minutes, such as reading weights."""
        return self._ask("POST", path, dict(body))

    def get(self, path: str) -> dict[str, Any]:
        """Ask what the server says of itself."""
        return self._ask("GET", path, None)

    def answers(self, path: str) -> bool:
        """Whether a GET is answered with 200."""
        try:
            get = self._httpx.get(f"{self.url}{path}", timeout=_TIMEOUT_S, verify=self._trust, trust_env=False)
        except self._httpx.HTTPError:
            return False
        return get.status_code == 200

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            response = self._httpx.request(
                method, f"{self.url}{path}", json=body, timeout=_LOAD_TIMEOUT_S, verify=self._trust, trust_env=False
            )
        except self._httpx.HTTPError as error:
            raise ServerFailure(f"the server at {self.url} is gone ({error!r})", gone=True) from error
        if response.status_code != 200:
            self._refuse(path, response)
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise ValueError(
                f"the server at {self.url} does not answer {path} in JSON; engine.urls must name servers of engine.use"
            ) from error

    def _refuse(self, path: str, response: Any) -> None:
        words = " ".join(response.text.split())[:_WORDS]
        told = f"the server at {self.url} answered {path} with {response.status_code}: {words}"
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise ServerFailure(told)
        raise ValueError(told)
