"""Tools that a model may call, and the box that answers its calls."""

from turnwise.tools.base import BaseTool
from turnwise.tools.box import ToolBox
from turnwise.tools.function import FunctionTool, function_tool
from turnwise.tools.load import load_tools
from turnwise.tools.records import (
    ToolContext,
    ToolError,
    ToolFault,
    ToolResponse,
    ToolResult,
    ToolSchema,
)
from turnwise.tools.shorten import Shorten
from turnwise.tools.toolset import Toolset

__all__ = [
    "BaseTool",
    "FunctionTool",
    "Shorten",
    "ToolBox",
    "ToolContext",
    "ToolError",
    "ToolFault",
    "ToolResponse",
    "ToolResult",
    "ToolSchema",
    "Toolset",
    "function_tool",
    "load_tools",
]
