"""Tools of MCP servers (pip install -e '.[mcp]'): programs on standard input and output, or HTTP.

A server is one session for all episodes: what it remembers of one episode, another can see.
"""

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.calling import in_thread
from turnwise.components import nearest
from turnwise.recipe import parse
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ToolError, ToolFault, ToolResponse, ToolSchema

_PARTING_S = 8.0  # the client gives a server 2 s to end by itself and 2 more to obey a signal


class Entry(BaseModel):
    """Of `mcp_servers` in a tool file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    url: str | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] | None = None
    connect_s: float = Field(default=30.0, gt=0)  # how long the server may take to begin
    tools: list[str] | None = None  # by their names; null: all
    config: dict[str, Any] = {}  # limits of every tool


class McpServer:
    """A session with a server, opened by the first call and again by the first call after it broke.

    It lives in a thread with an event loop of its own: a session belongs to the task that opened it, while the loop in
    which episodes are played stands still between batches.
    """

    def __init__(self, target: Any, name: str, connect_s: float = 30.0):
        """`target` is whatever mcp's Client takes: a URL, StdioServerParameters, or a server of this process."""
        self._target = target
        self.name = name
        self._connect_s = connect_s
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._parting: list[_Session] = []

    def tools(self) -> list[Any]:
        """What the server offers, in mcp's own records. Raises ValueError if it cannot be reached."""
        try:
            return self._open().run(_list_tools).result(self._connect_s)
        except Exception as error:
            self.close()
            raise ValueError(f"the MCP server {self.name} cannot be reached: {_plain(error)}") from error

    async def open(self) -> "_Session":
        """Raises ToolFault."""
        try:
            return await in_thread(self._open)
        except Exception as error:
            raise ToolFault(f"the MCP server {self.name} cannot be reached: {_plain(error)}") from error

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResponse:
        """Raises ToolError where the tool refuses, and ToolFault where the server fails or is gone."""
        from mcp import MCPError

        session = await self.open()
        try:
            done = await asyncio.wrap_future(session.run(lambda client: client.call_tool(tool, arguments)))
        except MCPError as error:
            if error.code in _server_failed():
                raise ToolFault(f"the MCP server {self.name} failed in a call of {tool}: {_plain(error)}") from error
            if error.code not in _session_ended():
                raise ToolError(str(error)) from error
            self._drop(session)
            raise ToolFault(f"the MCP server {self.name} closed the connection during a call of {tool}") from error
        except Exception as error:
            if not (
                isinstance(error, RuntimeError | ValueError) and session.lives
            ):  # so clients refuse what is no answer
                self._drop(session)
            raise ToolFault(f"the MCP server {self.name} failed in a call of {tool}: {_plain(error)}") from error
        try:
            response = _response(done)
        except ValueError as error:
            raise ToolFault(f"the MCP server {self.name} failed in a call of {tool}: {_plain(error)}") from error
        if done.is_error:
            raise ToolError(response.text or "the tool failed")
        return response

    def close(self) -> None:
        self._drop(self._session)
        for session in self._parting:
            session.wait()

    def _open(self) -> "_Session":
        with self._lock:  # for an instant only, as loops in which episodes are played take it too
            if self._session is None:
                self._session = _Session(self._target)
            session = self._session
        try:
            session.opened.result(self._connect_s)
        except BaseException:
            self._drop(session)
            raise
        return session

    def _drop(self, session: "_Session | None") -> None:
        with self._lock:
            if session is not None and self._session is session:
                self._session = None
                session.stop()
                self._parting = [*(one for one in self._parting if one.lives), session]


class _Session:
    """A client in a thread of its own."""

    def __init__(self, target: Any):
        self._target = target
        self.opened: Future[Any] = Future()  # the client
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def run(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(ask(self.opened.result()), self._loop)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)

    def wait(self) -> None:
        """Until a server that was stopped has ended; one that does not by itself is killed meanwhile."""
        self._thread.join(_PARTING_S)

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_until_complete(asyncio.wait({self._task}))

    async def _serve(self) -> None:
        try:
            from mcp import Client

            async with Client(self._target) as client:
                self.opened.set_result(client)
                await asyncio.Event().wait()  # until it is cancelled
        except BaseException as error:
            if not self.opened.done():
                stopped = isinstance(error, asyncio.CancelledError)  # by one of several who wait
                self.opened.set_exception(TimeoutError() if stopped else error)


class McpTool(BaseTool):
    """One tool of a server."""

    def __init__(self, server: McpServer, offered: Any, config: Mapping[str, Any]):
        parameters = {"properties": {}, **offered.input_schema}
        super().__init__(config, ToolSchema(offered.name, offered.description or "", parameters))
        if self.config:
            raise ValueError(f"config of mcp_servers does not take {', '.join(self.config)}")
        self._server = server

    async def create(self, instance_id: str | None = None) -> tuple[str | None, ToolResponse]:
        """Wait for the server here: a call that waits too long may be the model's fault."""
        await self._server.open()
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> ToolResponse:
        return await self._server.call(self.name, parameters)

    def close(self) -> None:
        self._server.close()


def mcp_tools(entry: Mapping[str, Any]) -> list[BaseTool]:
    """The tools of one entry of `mcp_servers` in a tool file."""
    try:
        asked = parse(entry, Entry)
    except ValueError as error:
        raise ValueError(f"mcp_servers: {error}") from error
    name = asked.url or asked.command
    if not name or (asked.url and asked.command):
        raise ValueError("an entry of mcp_servers needs a url or a command, and not both")
    try:
        from mcp import StdioServerParameters
    except ImportError as error:
        raise ValueError("mcp_servers needs a package: pip install -e '.[mcp]'") from error
    target = asked.url or StdioServerParameters(command=name, args=asked.args, env=asked.env)
    return tools_of(McpServer(target, name, asked.connect_s), asked.tools, asked.config)


def tools_of(
    server: McpServer, names: Sequence[str] | None = None, config: Mapping[str, Any] | None = None
) -> list[BaseTool]:
    """The tools of a server that have these names; None: all."""
    offered = {tool.name: tool for tool in server.tools()}
    for name in names or ():
        if name not in offered:
            raise ValueError(f"the MCP server {server.name} has no tool {name!r}{nearest(name, offered)}")
    return [McpTool(server, offered[name], config or {}) for name in (offered if names is None else names)]


async def _list_tools(client: Any) -> list[Any]:
    found, page = [], await client.list_tools()
    while True:
        found += page.tools
        if not page.next_cursor:
            return found
        page = await client.list_tools(cursor=page.next_cursor)


def _response(result: Any) -> ToolResponse:
    """Texts as one, and pictures as bytes; a server that answers with structure alone is shown as JSON."""
    texts = [text for block in result.content if (text := _text(block)) is not None]
    images = [base64.b64decode(block.data) for block in result.content if block.type == "image"]
    if not texts and not images and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ToolResponse("\n".join(texts), image=images or None)


def _text(block: Any) -> str | None:
    """What a model can read of a part of an answer; None for pictures."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        file = block.resource
        return getattr(file, "text", None) or f"[{file.uri}: {file.mime_type or 'a file'} that is no text]"
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    return None if block.type == "image" else f"[{block.type} that cannot be shown]"


def _session_ended() -> tuple[int, ...]:
    """What a client is told where the connection broke, or where a server that began again knows no such session."""
    from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

    return CONNECTION_CLOSED, INVALID_REQUEST


def _server_failed() -> tuple[int, ...]:
    """What a client is told of an HTTP status above 400, or of an answer that is none; no tool speaks so."""
    from mcp.types import INTERNAL_ERROR, PARSE_ERROR

    return INTERNAL_ERROR, PARSE_ERROR


def _plain(error: BaseException) -> str:
    """The first cause inside anyio's groups, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")
