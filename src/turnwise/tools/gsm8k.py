"""A tool that tells whether an answer to a problem of GSM8K is right, as in verl's example.

It gives the answer away to who asks often enough, which a calculator does not.
"""

from typing import Any

from turnwise.rewards.gsm8k import gsm8k
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ToolResponse

_NO_BETTER = -0.05  # for asking without getting better


class Gsm8kTool(BaseTool):
    """`calc_gsm8k_reward(answer)`. The sample's create_kwargs hold the ground truth."""

    def __init__(self, config: Any = None, tool_schema: Any = None):
        super().__init__(config, tool_schema)
        if self.config:
            raise ValueError(f"Gsm8kTool does not take {', '.join(self.config)}")
        self._truths: dict[str, Any] = {}
        self._best: dict[str, float] = {}

    def get_openai_tool_schema(self) -> Any:
        answer = {"type": "string", "description": "A plain number."}
        return {
            "name": "calc_gsm8k_reward",
            "description": "Tells how good an answer is: 1 is right, 0 is wrong.",
            "parameters": {"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
        }

    async def create(self, instance_id: str, ground_truth: Any):  # type: ignore[override]  # filled by name
        self._truths[instance_id], self._best[instance_id] = ground_truth, 0.0
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> tuple[str, float]:
        answer = parameters["answer"]
        score = gsm8k(answer, self._truths[instance_id], method="flexible")["score"]
        better = score > self._best[instance_id]
        self._best[instance_id] = max(score, self._best[instance_id])
        return f"{answer} scores {score:g}.", 0.0 if better else _NO_BETTER

    async def release(self, instance_id: str) -> None:
        del self._truths[instance_id], self._best[instance_id]
