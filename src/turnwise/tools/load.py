"""Tools from where they are written: a YAML tool file, a Python file, or a dotted path."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.components import load_object, nearest, with_colon
from turnwise.recipe import read_tree
from turnwise.tools.base import BaseTool
from turnwise.tools.function import as_tool, is_marked
from turnwise.tools.mcp import mcp_tools

_ENTRY = ("class_name", "config", "tool_schema")


def load_tools(sources: Sequence[str]) -> list[BaseTool]:
    """The tools of all sources, in order. A source is `tools.yaml`, `tools.py` or `module:attribute`."""
    return [tool for source in sources for tool in _load(source)]


def _load(source: str) -> list[BaseTool]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml", ".py") and not path.is_file():
        raise ValueError(f"the tool file {source} does not exist")
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(path)
    if path.suffix == ".py":
        marked = [thing for thing in vars(_run(path)).values() if is_marked(thing)]
        if not marked:
            raise ValueError(f"{source} has no function with @function_tool")
        return [as_tool(function) for function in dict.fromkeys(marked)]
    thing = load_object("a tool", with_colon(source))
    return [as_tool(thing() if isinstance(thing, type) and issubclass(thing, BaseTool) else thing)]


def _from_yaml(path: Path) -> list[BaseTool]:
    tree, known = read_tree(path), ("tools", "mcp_servers")
    if not tree:
        raise ValueError(f"{path} must hold a list under `tools` or `mcp_servers`")
    for key, entries in tree.items():
        if key not in known:
            raise ValueError(f"{path} has an unknown key {key}{nearest(str(key), known)}")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{path}: {key} must be a list of groups of keys")
    try:
        tools = [_from_entry(entry) for entry in tree.get("tools", [])]
        return tools + [tool for entry in tree.get("mcp_servers", []) for tool in mcp_tools(entry)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _from_entry(entry: Mapping[str, Any]) -> BaseTool:
    for key in entry:
        if key not in _ENTRY:
            raise ValueError(f"unknown key {key}{nearest(str(key), _ENTRY)}")
    kind = load_object("class_name", with_colon(str(entry.get("class_name", ""))))
    if not (isinstance(kind, type) and issubclass(kind, BaseTool)):
        raise ValueError(f"class_name is {entry['class_name']!r}, which does not extend turnwise.tools.BaseTool")
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise ValueError(f"the config of {entry['class_name']} is {config!r:.80}; write keys and values")
    return kind(config, entry.get("tool_schema"))


def _run(path: Path) -> ModuleType:
    """Run a file once, under a name made of its path."""
    name = f"turnwise_tools_{blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
