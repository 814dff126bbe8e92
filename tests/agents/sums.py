"""Sums as samples, a tool that adds, and a chat template that shows tools."""

import json
from typing import Any

from turnwise.tools import function_tool

HERMES = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Rows:
    """Sums, each with its answer; `extra` goes into every row."""

    def __init__(self, extra: dict[str, Any] | None = None):
        self.extra = extra or {}

    def rows(self, split: str) -> list[dict[str, Any]]:
        base = {"train": 10, "test": 90}[split]
        return [
            {"prompt": f"What is {n} plus 1?", "ground_truth": str(n + 1), **self.extra} for n in range(base, base + 8)
        ]


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One of them.
        b: The other.
    """
    return a + b


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
