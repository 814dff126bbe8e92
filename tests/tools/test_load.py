"""Tools from files and dotted paths."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turnwise.toolcalls import ToolCall
from turnwise.tools import BaseTool, ToolResponse, Toolset, function_tool, load_tools


class MySearchTool(BaseTool):
    """The search tool of verl's documentation."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str | None, ToolResponse]:
        return instance_id, ToolResponse(text="Search tool ready.")

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return ToolResponse(text=f"Pages on {parameters['query']}"), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        pass


FLAT = """
tools:
  - class_name: "test_load.MySearchTool"
    config:
      type: native
      timeout_s: 5
    tool_schema:
      name: search
      description: Search the web for information
      parameters:
        type: object
        properties:
          query:
            type: string
            description: The search query
        required:
          - query
"""
NESTED = """
tools:
  - class_name: test_load:MySearchTool
    config: {type: native, timeout_s: 5}
    tool_schema:
      type: function
      function:
        name: search
        description: Search the web for information
        parameters:
          {type: object, properties: {query: {type: string, description: The search query}}, required: [query]}
"""

PYTHON = '''
from turnwise.tools import function_tool

@function_tool
def get_weather(city: str) -> dict:
    """Get the current weather for a city.

    Args:
        city: The city to look up, e.g. "Tokyo" or "San Francisco".
    """
    return {"temperature_c": 17.3, "condition": "drizzle"}

@function_tool("calculator")
def compute(expression: str) -> str:
    """Evaluate a Python-style arithmetic expression.

    Args:
        expression: A Python-style arithmetic expression, e.g. "(3+4)*5".
    """
    return str(eval(expression, {"__builtins__": {}}, {}))
'''


@pytest.fixture(autouse=True)
def here(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_both_spellings_of_a_tool_file_load_equal_tools(tmp_path: Path):
    flat, nested = (load_tools([write(tmp_path, f"{i}.yaml", text)])[0] for i, text in enumerate((FLAT, NESTED)))
    assert flat.tool_schema == nested.tool_schema
    assert flat.limits == nested.limits
    assert flat.limits.timeout_s == 5


def test_the_published_tools_run_as_they_are(tmp_path: Path):
    tools = load_tools([write(tmp_path, "tools.yaml", FLAT), write(tmp_path, "tools.py", PYTHON)])
    calls = [("search", {"query": "PPO"}), ("get_weather", {"city": "Oslo"}), ("calculator", {"expression": "(3+4)*5"})]

    async def episode() -> Any:
        async with Toolset(tools, max_parallel_calls=3).open("e1") as box:
            results = await box.run([ToolCall(name, arguments, "ok", (0, 1)) for name, arguments in calls])
            return [one.response.text for one in results], box.created

    texts, created = asyncio.run(episode())
    assert texts == ["Pages on PPO", '{"temperature_c": 17.3, "condition": "drizzle"}', "35"]
    assert created == [("search", ToolResponse("Search tool ready."))]


def test_a_python_file_runs_once(tmp_path: Path):
    path = write(tmp_path, "tools.py", "from turnwise.tools import function_tool\nruns = []\n" + PYTHON)
    first, second = load_tools([path]), load_tools([path])
    assert [tool.name for tool in first] == ["get_weather", "calculator"]
    assert first[0]._function is second[0]._function  # type: ignore[attr-defined]


def test_a_dotted_path_names_a_function_a_class_or_a_tool():
    (tool,) = load_tools(["turnwise.tools.calculator:calculator"])
    assert tool.name == "calculator"
    assert load_tools(["turnwise.tools.calculator.calculator"])[0].tool_schema == tool.tool_schema


def test_the_decorator_leaves_the_function_as_it_was():
    def add(a: int, b: int = 1) -> int:
        """Add.

        Args:
            a: One.
            b: Two.
        """
        return a + b

    assert function_tool(add) is add
    assert function_tool("plus", timeout_s=3)(add) is add
    (tool,) = Toolset([add]).tools.values()
    assert (tool.name, tool.limits.timeout_s) == ("plus", 3)
    assert add(1) == 2


def test_a_schema_given_is_not_inferred():
    schema = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {}}}}

    @function_tool(schema=schema)
    def anything(a, b=2):  # type: ignore[no-untyped-def]
        return a + b

    async def episode() -> Any:
        async with Toolset([anything]).open("e1") as box:
            return await box.run([ToolCall("add", {"a": 1}, "ok", (0, 1))])

    assert asyncio.run(episode())[0].response.text == "3"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "tools: {", "is not YAML"),
        ("a.yaml", "", "must hold a list"),
        ("a.yaml", "tools: []\ntools: []", "the key tools stands there twice"),
        ("a.yaml", "tool: []", "unknown key tool; did you mean 'tools'"),
        ("a.yaml", "tools: [search]", "tools must be a list of groups of keys"),
        ("a.yaml", "tools: [{clas_name: a}]", "unknown key clas_name; did you mean 'class_name'"),
        ("a.yaml", "tools: [{class_name: nowhere.Tool}]", "nowhere:Tool"),
        ("a.yaml", "tools: [{class_name: test_load.FLAT}]", "does not extend"),
        ("a.yaml", "tools: [{class_name: test_load.MySearchTool}]", "MySearchTool has no tool_schema"),
        ("a.yaml", "tools: [{class_name: test_load.MySearchTool, config: 3}]", "write keys and values"),
        ("a.yaml", FLAT.replace("native", "mcp"), "config.type is 'mcp'"),
        ("a.yaml", "mcp_servers: [{url: a, comand: b}]", "mcp_servers: unknown key comand; did you mean 'command'"),
        ("a.yaml", "mcp_servers: [{command: a, args: server.py}]", "mcp_servers: args is 'server.py'; it must be a"),
        ("a.yaml", "mcp_servers: [{url: a, connect_s: soon}]", "mcp_servers: connect_s is 'soon'"),
        ("a.yaml", "mcp_servers: [{url: a, tools: err}]", "mcp_servers: tools is 'err'"),
        ("a.yaml", "mcp_servers: [{url: a, config: [1]}]", "mcp_servers: config is [1]"),
        ("a.yaml", "mcp_servers: [{}]", "needs a url or a command, and not both"),
        ("a.py", "x = 1", "has no function with @function_tool"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, name: str, text: str, said: str):
    with pytest.raises(ValueError) as refusal:
        load_tools([write(tmp_path, name, text)])
    assert said in str(refusal.value)


def test_a_missing_file_is_named():
    for name in ("nowhere.yaml", "nowhere.py"):
        with pytest.raises(ValueError, match=f"the tool file {name} does not exist"):
            load_tools([name])


def test_what_is_no_tool_is_refused():
    with pytest.raises(ValueError, match="is no tool"):
        Toolset([3])
    with pytest.raises(ValueError, match="is no tool"):
        Toolset([MySearchTool])
    with pytest.raises(ValueError, match="function_tool does not take colour"):
        function_tool(colour=1)(test_what_is_no_tool_is_refused)
        Toolset([function_tool(colour=1, schema={"name": "a"})(lambda: None)])
