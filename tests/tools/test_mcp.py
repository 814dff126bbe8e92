"""Tools of MCP servers: in this process, as a program, and over HTTP on the loopback."""

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import StdioServerParameters
from mcp.server import MCPServer

from turnwise.toolcalls import ToolCall
from turnwise.tools import ToolFault, Toolset, load_tools
from turnwise.tools.mcp import McpServer, McpTool, tools_of

SERVER = """
import os, sys
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import BlobResourceContents, EmbeddedResource, ResourceLink, TextResourceContents

server = MCPServer("test", log_level="CRITICAL")

@server.tool()
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def refuse() -> str:
    "Refuse."
    raise ToolError("not today")

@server.tool()
def read() -> list:
    "Read files."
    file = TextResourceContents(uri="file:///a.txt", text="what it says")
    blob = BlobResourceContents(uri="file:///b.bin", blob="AAAA", mime_type="application/x-b")
    link = ResourceLink(type="resource_link", name="c", uri="file:///c")
    return [EmbeddedResource(type="resource", resource=file), EmbeddedResource(type="resource", resource=blob), link]

@server.tool()
def die() -> str:
    "End the server."
    os._exit(1)
"""


@pytest.fixture(scope="module")
def server() -> MCPServer:
    names: dict[str, Any] = {}
    exec(SERVER, names)
    return names["server"]


def ask(tools: Any, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str | None]]:
    async def episode() -> list[tuple[str, str | None]]:
        async with Toolset(tools, max_parallel_calls=9).open("e1") as box:
            results = await box.run([ToolCall(name, arguments, "ok", (0, 1)) for name, arguments in calls])
        return [(one.status, one.response.text) for one in results]

    return asyncio.run(episode())


def test_files_that_a_server_sends_are_read(server: MCPServer):
    tools = tools_of(McpServer(server, "here"))
    ((status, text),) = ask(tools, ("read", {}))
    assert status == "ok"
    assert text == "what it says\n[file:///b.bin: application/x-b that is no text]\n[c: file:///c]"
    tools[0].close()


def test_a_server_of_this_process(server: MCPServer):
    tools = tools_of(McpServer(server, "here"))
    assert [tool.name for tool in tools] == ["add", "refuse", "read", "die"]
    assert tools[0].tool_schema.description == "Add two numbers."
    assert tools[0].tool_schema.parameters["required"] == ["a"]
    try:
        asked = [("add", {"a": 1, "b": 2}), ("add", {"a": 2}), ("refuse", {}), ("add", {"a": "x"})]
        for _ in range(2):  # the session outlives the event loop of an episode
            first, second, third, fourth = ask(tools, *asked)
            assert (first, second) == (("ok", "3"), ("ok", "3"))
            assert (third[0], "not today" in (third[1] or "")) == ("tool_error", True)
            assert (fourth[0], "'x' is not of type 'integer'" in (fourth[1] or "")) == ("invalid_arguments", True)
    finally:
        tools[0].close()


def test_a_program_and_its_end(tmp_path: Path):
    script = tmp_path / "server.py"
    script.write_text(SERVER + "\nserver.run()\n")
    limits = "connect_s: 300, config: {timeout_s: 300}"
    entry = f"mcp_servers: [{{command: {sys.executable}, args: [{script}], tools: [add, die], {limits}}}]"
    (tmp_path / "tools.yaml").write_text(entry)
    tools = load_tools([str(tmp_path / "tools.yaml")])
    try:
        assert ask(tools, ("add", {"a": 1})) == [("ok", "2")]
        with pytest.raises(ToolFault, match="MCP server"):
            ask(tools, ("die", {}))
        assert ask(tools, ("add", {"a": 2})) == [("ok", "3")]  # a new server
    finally:
        tools[0].close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    import uvicorn

    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    web = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=web.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
    web.should_exit = True
    thread.join()


def test_a_server_on_the_loopback(server: MCPServer, tmp_path: Path):
    with served(server.streamable_http_app()) as address:
        (tmp_path / "tools.yaml").write_text(f"mcp_servers: [{{url: '{address}'}}]")
        tools = load_tools([str(tmp_path / "tools.yaml")])
        try:
            assert ask(tools, ("add", {"a": 1})) == [("ok", "2")]
        finally:
            tools[0].close()


class Forgetful:
    """Speaks the protocol of 2025, in which a server knows its sessions; it forgets them when it begins again."""

    session = "first"

    async def answer(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, Response

        asked = await request.json() if request.method == "POST" else {}
        add = {"name": "add", "inputSchema": {"type": "object"}}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
        known = request.headers.get("mcp-session-id") == self.session
        answers: dict[str, Any] = {"initialize": hello}
        if known:
            answers |= {"tools/list": {"tools": [add]}, "tools/call": {"content": []}}
        if asked.get("method") not in answers:
            return Response(status_code=202 if known and "id" not in asked else 404)
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": answers[asked["method"]]}
        return JSONResponse(answer, headers={"mcp-session-id": self.session})


def test_a_server_that_forgot_its_sessions_is_asked_for_a_new_one():
    from starlette.applications import Starlette
    from starlette.routing import Route

    server = Forgetful()
    with served(Starlette(routes=[Route("/mcp", server.answer, methods=["GET", "POST", "DELETE"])])) as address:
        tools = tools_of(McpServer(address, "forgetful"))
        try:
            assert ask(tools, ("add", {})) == [("ok", "")]
            server.session = "second"
            with pytest.raises(ToolFault, match="the MCP server forgetful closed the connection"):
                ask(tools, ("add", {}))
            assert ask(tools, ("add", {})) == [("ok", "")]
        finally:
            tools[0].close()


@pytest.mark.parametrize(
    ("how", "told"), [*((how, False) for how in ("500", "429", "internal", "no JSON", "no picture")), ("params", True)]
)
def test_a_server_that_fails_is_tried_again_and_then_no_lesson_for_the_model(how: str, told: bool):
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    calls = []

    class Failing(Forgetful):
        async def answer(self, request: Any) -> Any:
            asked = await request.json() if request.method == "POST" else {}
            if asked.get("method") != "tools/call":
                return await super().answer(request)
            calls.append(asked)
            head: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
            if how in ("internal", "params"):
                code = -32603 if how == "internal" else -32602
                return JSONResponse(head | {"error": {"code": code, "message": "not so"}})
            if how == "no picture":
                broken = {"type": "image", "data": "a", "mimeType": "image/png"}
                return JSONResponse(head | {"result": {"content": [broken]}})
            return Response("?", media_type="application/json") if how == "no JSON" else Response(status_code=int(how))

    app = Starlette(routes=[Route("/mcp", Failing().answer, methods=["GET", "POST", "DELETE"])])
    with served(app) as address:
        tools = tools_of(McpServer(address, "failing"), config={"retries": 1})
        try:
            if told:
                assert ask(tools, ("add", {})) == [("tool_error", "add failed: not so")]
            else:
                with pytest.raises(ToolFault, match="the MCP server failing failed in a call of add"):
                    ask(tools, ("add", {}))
        finally:
            tools[0].close()
    assert len(calls) == 2


@pytest.mark.parametrize("how", ["schema", "picture"])
def test_an_answer_that_is_none_costs_no_other_episode_its_session(how: str):
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    begun = []

    class Careless(Forgetful):
        async def answer(self, request: Any) -> Any:
            asked = await request.json() if request.method == "POST" else {}
            head: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.get("id")}
            begun.extend(["one"] * (asked.get("method") == "initialize"))
            if asked.get("method") == "tools/list":
                number = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
                add = {"name": "add", "inputSchema": {"type": "object"}, "outputSchema": number}
                return JSONResponse(
                    head | {"result": {"tools": [add if how == "schema" else {**add, "outputSchema": None}]}}
                )
            if asked.get("method") == "tools/call":
                broken = {"type": "image", "data": "a", "mimeType": "image/png"}
                content = [broken] if how == "picture" else [{"type": "text", "text": "3"}]
                return JSONResponse(head | {"result": {"content": content}})
            return await super().answer(request)

    app = Starlette(routes=[Route("/mcp", Careless().answer, methods=["GET", "POST", "DELETE"])])
    with served(app) as address:
        tools = tools_of(McpServer(address, "careless"))
        try:
            for _ in range(3):
                with pytest.raises(ToolFault, match="the MCP server careless failed in a call of add"):
                    ask(tools, ("add", {}))
        finally:
            tools[0].close()
    assert begun == ["one"]


def test_a_server_that_never_begins_is_waited_for_once_and_ended(tmp_path: Path):
    begun = tmp_path / "begun"
    script = f"import os, time; open({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    server = McpServer(StdioServerParameters(command=sys.executable, args=["-c", script]), "sleeper", connect_s=2)
    offered = SimpleNamespace(name="add", description="", input_schema={"type": "object"})
    tools = Toolset([McpTool(server, offered, {})])

    async def episode(name: str) -> None:
        async with tools.open(name) as box:
            with pytest.raises(ToolFault, match="the MCP server sleeper cannot be reached: TimeoutError"):
                await box.run([ToolCall("add", {}, "ok", (0, 1))])

    async def batch() -> None:
        await asyncio.gather(*(episode(name) for name in "abc"))

    asyncio.run(batch())
    tools.close()
    (process,) = begun.read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_a_server_that_is_not_there():
    with pytest.raises(ValueError, match="the MCP server nobody cannot be reached"):
        tools_of(McpServer("http://127.0.0.1:9/mcp", "nobody"))


def test_a_tool_that_a_server_does_not_have(server: MCPServer):
    source = McpServer(server, "here")
    with pytest.raises(ValueError, match="the MCP server here has no tool 'ad'; did you mean 'add'"):
        tools_of(source, ["ad"])
    source.close()


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: Any):
    monkeypatch.setitem(sys.modules, "mcp", None)
    from turnwise.tools.mcp import mcp_tools

    with pytest.raises(ValueError, match=r"pip install -e '\.\[mcp\]'"):
        mcp_tools({"command": os.devnull})


def test_what_would_do_nothing_is_refused(server: MCPServer):
    here = McpServer(server, "here")
    try:
        with pytest.raises(ValueError, match="config of mcp_servers does not take timeout"):
            tools_of(here, config={"timeout": 3})
    finally:
        here.close()
