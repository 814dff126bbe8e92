"""Rows in the format of GSM8K (arXiv:2110.14168), `question` and `answer`, as rows for agents.

The answer is a solution in words with its calculations between `<<` and `>>`, and ends in `#### NUMBER`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from turnwise.data.read import Row
from turnwise.rewards.numbers import to_number

_SYSTEM = {
    None: "Solve the problem step by step.",
    "calculator": "Solve the problem step by step. Calculate with the tool calculator.",
    "calc_gsm8k_reward": "Solve the problem step by step. Check your answer with the tool calc_gsm8k_reward, "
    "once at least, and correct it if it is wrong.",
}
_ENDING = " End with #### and the answer, a plain number."


@dataclass(frozen=True)
class Gsm8k:
    """`tool` is what the model may call: a calculator, calc_gsm8k_reward, which tells whether an answer is right, or
    nothing. `interaction` names the simulated user, where there is one. `system` replaces the system message."""

    tool: Literal["calculator", "calc_gsm8k_reward"] | None = "calculator"
    interaction: str = ""
    system: str = ""

    def __post_init__(self) -> None:
        if self.tool not in _SYSTEM:
            raise ValueError(f"data.convert.tool is {self.tool!r}; there are calculator, calc_gsm8k_reward and null")

    def __call__(self, row: Row, index: int, split: str) -> Row:
        question, answer = _text(row, "question"), _text(row, "answer")
        ground_truth = answer.rpartition("####")[2].strip().replace(",", "")
        if "####" not in answer or to_number(ground_truth) is None:
            raise ValueError("column answer does not end in #### and a number")
        extra: Row = {"split": split, "index": index, "answer": answer, "question": question}
        if self.tool == "calc_gsm8k_reward":
            kwargs = {self.tool: {"create_kwargs": {"ground_truth": ground_truth}}}
            extra |= {"need_tools_kwargs": True, "tools_kwargs": kwargs}
        if self.interaction:
            extra["interaction_kwargs"] = {"name": self.interaction, "query": question, "ground_truth": ground_truth}
        return {
            "data_source": row.get("data_source", "openai/gsm8k"),
            "agent_name": "tool_agent" if self.tool or self.interaction else "single_turn_agent",
            "tool_selection": [self.tool] if self.tool else [],
            "prompt": [
                {"role": "system", "content": self.system or _SYSTEM[self.tool] + _ENDING},
                {"role": "user", "content": question},
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": ground_truth},
            "extra_info": extra,
        }


def _text(row: Row, column: str) -> str:
    value: Any = row.get(column)
    if not isinstance(value, str):
        raise ValueError(f"column {column} is {value!r:.80}; rows of GSM8K have the texts question and answer")
    return value
