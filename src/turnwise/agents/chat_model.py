"""The policy as a chat model of LangChain, inside this process."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import (  # pyright: ignore[reportMissingImports]
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import BaseChatModel  # pyright: ignore[reportMissingImports]
from langchain_core.messages import (  # pyright: ignore[reportMissingImports]
    AIMessage,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult  # pyright: ignore[reportMissingImports]
from langchain_core.utils.function_calling import convert_to_openai_tool  # pyright: ignore[reportMissingImports]

from turnwise.agents.calls import Answer
from turnwise.agents.completions import read_completion


class ChatModel(BaseChatModel):
    """Each call is a turn of the episode, asynchronous ones only. What the endpoint refuses is refused here.

    A reply carries the record of its turn in `response_metadata`: its number, the ids that were shown and sampled, the
    log-probs of these, and the version of the weights.
    """

    calls: Any  # turnwise.agents.calls.Calls

    @property
    def _llm_type(self) -> str:
        return "turnwise"

    def bind_tools(self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any], **kwargs: Any) -> Any:
        """The model with these tools, in any form that LangChain knows."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("episodes are played side by side in one loop; call the model by await model.ainvoke")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        plain = convert_to_openai_messages(messages)
        asked = read_completion({"model": "", "messages": plain, "stop": stop, **kwargs})
        answer = await self.calls.reply(asked.messages, asked.tools)
        return ChatResult(generations=[ChatGeneration(message=_message(answer))])


def _message(answer: Answer) -> AIMessage:
    generation = answer.generation
    shown, sampled = len(answer.prompt_ids), len(generation.token_ids)
    return AIMessage(
        content=answer.content,
        tool_calls=[
            {
                "type": "tool_call",
                "id": call["id"],
                "name": call["function"]["name"],
                "args": call["function"]["arguments"],
            }
            for call in answer.calls
        ],
        response_metadata={
            "finish_reason": answer.finish_reason,
            "turn": answer.turn,
            "prompt_ids": answer.prompt_ids,
            "token_ids": generation.token_ids,
            "logprobs": generation.logprobs,
            "policy_version": generation.policy_version,
        },
        usage_metadata={"input_tokens": shown, "output_tokens": sampled, "total_tokens": shown + sampled},
    )
