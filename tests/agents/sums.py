"""Sums as samples, a tool that adds, a chat template that shows tools, and what tests of agents share."""

import json
from typing import Any

import torch

from turnwise.batch import pack
from turnwise.config import Config
from turnwise.recipe import parse_config
from turnwise.tools import function_tool
from turnwise.types import Segment

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


def adds(prompt: str, _: int) -> str:
    """What a model says that lets the tool add, and believes it."""
    question = int(prompt.split("What is ")[1].split()[0])
    if "<tool_response>" not in prompt:
        return f"Let me see. {call('add', a=question, b=1)}"
    return f"#### {prompt.split('<tool_response>')[1].split('</tool_response>')[0].strip()}"


def config(agent: str | dict[str, Any], rollout: dict[str, Any] | None = None, **tree: Any) -> Config:
    """`agent` is the name of a program among the guests, or the keys of an agent."""
    if isinstance(agent, str):
        agent = {"function": f"guests:{agent}"}
    return parse_config(
        {
            "agent": {"use": "openai", **({"timeout_s": 600} if "use" not in agent else {}), **agent},
            "data": {"generate": {"use": "sums:Rows", **tree.pop("rows", {})}},
            "reward": {"use": "gsm8k"},
            "rollout": {"n_env": 1, "episodes": 1, "max_prompt_tokens": 4000, **(rollout or {})},
            "update": {"minibatch": 1},
            **tree,
        }
    )


def assert_same(segments: list[Segment], others: list[Segment]) -> None:
    """The same turns, and so the same tensors."""
    for one, other in zip(segments, others, strict=True):
        assert (one.turns, one.end, one.final_prompt_ids) == (other.turns, other.end, other.final_prompt_ids)
        assert one.outcome and other.outcome and one.outcome.success == other.outcome.success
    left, right = vars(pack(segments)), vars(pack(others))
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert same or name == "segments", name
