"""The engine behind an OpenAI-compatible server on this machine, one for all episodes of a run.

It runs in a thread of its own, because the loop in which episodes are played stands still between batches: then a
request waits, and is not turned away. An episode is known by its id, which stands in the address or is the API key.
Nobody can guess it, so that programs cannot speak for one another.
"""

import asyncio
import hashlib
import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from turnwise.agents.calls import Answer, Calls, OverLimit, Refusal
from turnwise.agents.completions import read_completion
from turnwise.agents.responses import read_response
from turnwise.agents.wire import BadRequest
from turnwise.agents.wire import Request as Asked
from turnwise.figures import finite

_RETRY = "x-stainless-retry-count"  # how OpenAI's own clients tell that they ask again
_GONE = 499  # as nginx calls a client that did not wait


@dataclass
class _Episode:
    calls: Calls
    loop: asyncio.AbstractEventLoop  # where the calls are answered
    answers: dict[str, asyncio.Future[Answer]] = field(default_factory=dict)  # by idempotency key or digest
    unread: set[str] = field(default_factory=set)  # whose client left before the answer


class Endpoint:
    """Serves from its making until `close`."""

    def __init__(self, model: str):
        """`model` is the only one that there is."""
        self.model = model
        self._episodes: dict[str, _Episode] = {}
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", "/v1/chat/completions", partial(self._ask, read_completion)),
            ("POST", "/v1/responses", partial(self._ask, read_response)),
            ("GET", "/v1/models", self._models),
            ("POST", "/reward", self._reward),
            ("POST", "/end", self._end),
        ]
        both = [(method, prefix + path, act) for method, path, act in routes for prefix in ("", "/t/{id}")]
        app = Starlette(
            routes=[Route(path, act, methods=[method]) for method, path, act in both],
            exception_handlers={BadRequest: _bad_request},
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        self._server.force_exit = True  # a client that still waits at the end of a run is not waited for
        run = self._server.run
        self._thread = threading.Thread(target=lambda: run(sockets=[listening]), name="endpoint", daemon=True)
        self._thread.start()

    @contextmanager
    def open(self, calls: Calls) -> Iterator[str]:
        """The id of an episode whose calls are answered in the running loop; afterwards it is unknown."""
        id = secrets.token_urlsafe(16)
        self._episodes[id] = _Episode(calls, asyncio.get_running_loop())
        try:
            yield id
        finally:
            del self._episodes[id]

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _episode(self, request: Request) -> _Episode:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        episode = self._episodes.get(request.path_params.get("id") or bearer)
        if episode is None:
            raise BadRequest("there is no such episode, or it is over", code="unknown_session", status=404)
        return episode

    async def _ask(self, read: Callable[[Any], Asked], request: Request) -> Response:
        episode = self._episode(request)
        asked = read(await _json(request))
        if asked.model != self.model:
            text = f"the model {asked.model!r} does not exist; there is {self.model!r}"
            raise BadRequest(text, "model", "model_not_found", 404)
        key = request.headers.get("idempotency-key") or hashlib.sha256(await request.body()).hexdigest()
        answer = self._answer(episode, key, request, lambda: episode.calls.reply(asked.messages, asked.tools))
        if not await _stays(request, answer):
            episode.unread.add(key)
            return Response(status_code=_GONE)
        told = await _refusing(answer)
        if asked.stream:
            return StreamingResponse(asked.events(told), media_type="text/event-stream")
        # In ASCII, since it repeats words of the program, which may hold half a surrogate pair.
        return Response(json.dumps(asked.whole(told)), media_type="application/json")

    def _answer(
        self, episode: _Episode, key: str, request: Request, ask: Callable[[], Awaitable[Answer]]
    ) -> asyncio.Future[Answer]:
        """A new answer, or for a request that is sent again the one that is on its way, or was never read.

        The same words from a client that still waits are another question: it may want to compare replies.
        """
        again = "idempotency-key" in request.headers or request.headers.get(_RETRY, "0") != "0" or key in episode.unread
        episode.unread.discard(key)
        if key not in episode.answers or not again:
            episode.answers[key] = _handed_over(ask(), episode.loop)
        return episode.answers[key]

    async def _models(self, request: Request) -> Response:
        self._episode(request)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _reward(self, request: Request) -> Response:
        episode, told = self._episode(request), await _json(request)
        value, turn = _only(told, "value", "turn")
        amount = None if isinstance(value, bool) else finite(value)
        if amount is None:
            raise BadRequest(f"value is {value!r:.80}; it must be a finite number", "value")
        if turn is not None and type(turn) is not int:
            raise BadRequest(f"turn is {turn!r:.80}; it must be the number of a turn, from 0", "turn")

        async def pay() -> None:
            episode.calls.reward(amount, turn)

        await _refusing(_handed_over(pay(), episode.loop))
        return JSONResponse({})

    async def _end(self, request: Request) -> Response:
        episode, told = self._episode(request), await _json(request)
        (how,) = _only(told, "end")
        if how not in ("terminated", "truncated"):
            raise BadRequest(f"end is {how!r:.80}; choose terminated or truncated", "end")

        async def end() -> None:
            episode.calls.end(how)

        await _refusing(_handed_over(end(), episode.loop))
        return JSONResponse({})


async def _json(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def _only(told: Any, *keys: str) -> list[Any]:
    """The values of these keys, None where one is missing."""
    if not isinstance(told, dict) or set(told) - set(keys):
        raise BadRequest(f"the body is a JSON object with {' and '.join(keys)}")
    return [told.get(key) for key in keys]


def _handed_over(coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """Run it in another loop, as soon as that runs."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


async def _stays(request: Request, answer: asyncio.Future[Any]) -> bool:
    """Wait for the answer; False if the client left before it came."""
    leaves = asyncio.ensure_future(request.receive())  # the body has been read: what is left to hear is the end
    try:
        await asyncio.wait({answer, leaves}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaves.cancel()
    return answer.done()


async def _refusing(answer: asyncio.Future[Any]) -> Any:
    """The answer; a refusal is told to the program."""
    try:
        return await asyncio.shield(answer)
    except OverLimit as error:
        raise BadRequest(str(error), code="context_length_exceeded") from error
    except Refusal as error:
        raise BadRequest(str(error)) from error
    except asyncio.CancelledError as error:
        raise BadRequest("the episode is over", code="unknown_session", status=404) from error


async def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return JSONResponse(error.body, error.status)
