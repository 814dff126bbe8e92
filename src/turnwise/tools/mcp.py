"""Tools of MCP servers (pip install turnwise[mcp]): programs on standard input and output, or HTTP.

A server is one session for all episodes: what it remembers of one episode, another can see.
"""

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from turnwise.calling import in_thread
from turnwise.components import nearest
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ToolError, ToolFault, ToolResponse, ToolSchema

_PARTING_S = 8.0  # the client gives a server 2 s to end by itself and 2 more to obey a signal
_KEYS = ("url", "command", "args", "env", "connect_s", "tools", "config")


class McpServer:
    """A session with a server, opened by the first call and again by the first call after it broke.

    It lives in a thread with an event loop of its own: a session belongs to the task that opened it, while the loops
    in which episodes are played come and go.
    """

    def __init__(self, target: Any, name: str, connect_s: float = 30.0):
        """`target` is whatever mcp's Client takes: a URL, StdioServerParameters, or a server of this process."""
        self._target = target
        self.name = name
        self._connect_s = connect_s
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def tools(self) -> list[Any]:
        """What the server offers, in mcp's own records. Raises ValueError if it cannot be reached."""
        try:
            return self._open().run(_list_tools).result(self._connect_s)
        except Exception as error:
            raise ValueError(f"the MCP server {self.name} cannot be reached: {_plain(error)}") from error

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResponse:
        """Raises ToolError where the tool refuses, and ToolFault where the server is gone."""
        from mcp import MCPError

        session = None
        try:
            session = await in_thread(self._open)
            done = await asyncio.wrap_future(session.run(lambda client: client.call_tool(tool, arguments)))
        except MCPError as error:
            if error.code != _connection_closed():
                raise ToolError(str(error)) from error
            self._drop(session)
            raise ToolFault(f"the MCP server {self.name} closed the connection during a call of {tool}") from error
        except Exception as error:
            self._drop(session)
            raise ToolFault(f"the MCP server {self.name} failed in a call of {tool}: {_plain(error)}") from error
        response = _response(done)
        if done.is_error:
            raise ToolError(response.text or "the tool failed")
        return response

    def close(self) -> None:
        session = self._session
        self._drop(session)
        if session is not None:
            session.wait()

    def _open(self) -> "_Session":
        with self._lock:
            if self._session is None:
                self._session = _Session(self._target, self._connect_s)
            return self._session

    def _drop(self, session: "_Session | None") -> None:
        with self._lock:
            if session is not None and self._session is session:
                self._session = None
                session.stop()


class _Session:
    """A client in a thread of its own."""

    def __init__(self, target: Any, connect_s: float):
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._serve(opened := Future()))
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        try:
            self._client = opened.result(connect_s)
        except BaseException:
            self.stop()
            raise

    def run(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)

    def wait(self) -> None:
        """Until a server that was stopped has ended; one that does not by itself is killed meanwhile."""
        self._thread.join(_PARTING_S)

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_until_complete(asyncio.wait({self._task}))

    async def _serve(self, opened: "Future[Any]") -> None:
        try:
            from mcp import Client

            async with Client(self._target) as client:
                opened.set_result(client)
                await asyncio.Event().wait()  # until it is cancelled
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)


class McpTool(BaseTool):
    """One tool of a server."""

    def __init__(self, server: McpServer, offered: Any, config: Mapping[str, Any]):
        parameters = {"properties": {}, **offered.input_schema}
        super().__init__(config, ToolSchema(offered.name, offered.description or "", parameters))
        if self.config:
            raise ValueError(f"config of mcp_servers does not take {', '.join(self.config)}")
        self._server = server

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> ToolResponse:
        return await self._server.call(self.name, parameters)

    def close(self) -> None:
        self._server.close()


def mcp_tools(entry: Mapping[str, Any]) -> list[BaseTool]:
    """The tools of one entry of `mcp_servers` in a tool file: all, or those named under `tools`.

    An entry has a `url`, or a `command` with `args` and `env`; `connect_s` is how long the server may take to begin,
    and `config` holds the limits of every tool.
    """
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"unknown key mcp_servers.{key}{nearest(str(key), _KEYS)}")
    if ("url" in entry) == ("command" in entry):
        raise ValueError("an entry of mcp_servers needs a url or a command, and not both")
    try:
        from mcp import StdioServerParameters
    except ImportError as error:
        raise ValueError("mcp_servers needs a package: pip install turnwise[mcp]") from error
    name = target = entry.get("url") or entry["command"]
    if "command" in entry:
        target = StdioServerParameters(command=name, args=entry.get("args", []), env=entry.get("env"))
    server = McpServer(target, name, entry.get("connect_s", 30.0))
    return tools_of(server, entry.get("tools"), entry.get("config", {}))


def tools_of(server: McpServer, names: Any = None, config: Mapping[str, Any] | None = None) -> list[BaseTool]:
    """The tools of a server that have these names; None: all."""
    offered = {tool.name: tool for tool in server.tools()}
    for name in names or ():
        if name not in offered:
            raise ValueError(f"the MCP server {server.name} has no tool {name!r}{nearest(str(name), offered)}")
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


def _connection_closed() -> int:
    from mcp.types import CONNECTION_CLOSED

    return CONNECTION_CLOSED


def _plain(error: BaseException) -> str:
    """The first cause inside anyio's groups, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")
