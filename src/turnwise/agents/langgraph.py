"""Lets a graph of LangGraph play, in this process: one of yours, or model and tools in turn."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.agents.calls import Calls, asked_of, check_limits, load_program
from turnwise.agents.chat import count_figures, sample_of
from turnwise.agents.judge import Judge
from turnwise.agents.tool import opening
from turnwise.failures import EpisodeFailure
from turnwise.optional import optional
from turnwise.protocols import Session, Setting
from turnwise.toolcalls import ToolCall, find_format
from turnwise.tools import Shorten, ToolBox, Toolset, load_tools
from turnwise.types import Ending, Message, Sample

_GIVEN = ("model", "tools", "sample")
_KEPT = {"config", "run_manager"}  # parameters that LangChain fills itself
_STEPS_A_TURN = 20  # a graph that takes more runs in a circle


class LangGraphAgent:
    """Each call of the model, in whatever node, becomes a turn. An error of the graph loses the episode."""

    def __init__(
        self,
        setting: Setting,
        graph: str = "",
        tools: Sequence[str] = (),
        format: str = "hermes",
        max_turns: int = 25,
        max_tool_reply: int = 256,
        timeout_s: float = 120.0,
    ):
        """`graph` is the dotted path of a function that returns a graph, compiled or not. It asks by the names of its
        parameters for `model`, for `tools` (the recipe's, as tools of LangChain) and for `sample`. The graph begins
        with the sample's prompt in `messages`; a number in `reward` at its end is a reward.

        `tools` are files or dotted paths; what one says is cut to `max_tool_reply` characters. The call after
        `max_turns` turns ends the episode, as does one whose prompt is too long. A graph that does not call the
        model for `timeout_s` seconds loses its episode.
        """
        check_limits(timeout_s, max_turns=max_turns, max_tool_reply=max_tool_reply)
        for module in ("langgraph.graph", "langgraph.prebuilt", "langchain_core.tools"):
            optional(module, "langgraph")
        from turnwise.agents.chat_model import ChatModel

        self._model = ChatModel
        self._build = load_program("agent.graph", graph, _GIVEN) if graph else react
        self._setting = setting
        self._format = find_format(format)
        self._max_turns = max_turns
        self._timeout_s = timeout_s
        self._judge = Judge(setting)

        def make_tools() -> Toolset:
            return Toolset(load_tools(tools), shorten=Shorten(max_tool_reply))

        self._toolset = setting.shared.once(f"tools of graphs {tools} {max_tool_reply}", make_tools)

    def refuse(self, sample: Sample) -> None:
        """A ValueError where it asks for tools that there are not."""
        self._toolset.open("", sample.tools, sample.tools_kwargs)

    async def run(self, session: Session) -> Ending:
        sample = sample_of(session)
        async with self._toolset.open(session.name, sample.tools, sample.tools_kwargs) as box:
            calls = Calls(session, self._setting, self._max_turns, self._format)
            given = {"model": self._model(calls=calls), "tools": _tools_of(box, calls), "sample": sample}
            final_prompt = await calls.play(self._program(given, opening(sample, box)), self._timeout_s)
            session.reward(sum((await box.final_rewards()).values()))
            return await self._judge(session, sample, calls, final_prompt)

    async def _program(self, given: Mapping[str, Any], messages: Sequence[Message]) -> Any:
        """Play the graph, and return its reward. It is built here too, where its errors are those of a program."""
        graph = self._build(**asked_of(self._build, given))
        graph = graph.compile() if hasattr(graph, "compile") else graph
        steps = {"recursion_limit": _STEPS_A_TURN * self._max_turns}
        state = await graph.ainvoke({"messages": messages}, steps)
        return state.get("reward") if isinstance(state, Mapping) else None


def react(model: Any, tools: Sequence[Any]) -> Any:
    """The graph of ReAct (Yao et al., 2022): the model, then the tools that it calls, until it calls none."""
    graphs, prebuilt = optional("langgraph.graph", "langgraph"), optional("langgraph.prebuilt", "langgraph")
    policy = model.bind_tools(tools)

    async def agent(state: Any) -> dict[str, Any]:
        return {"messages": [await policy.ainvoke(state["messages"])]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", prebuilt.ToolNode(tools))
    graph.add_edge(graphs.START, "agent")
    graph.add_conditional_edges("agent", prebuilt.tools_condition)
    graph.add_edge("tools", "agent")
    return graph


def _tools_of(box: ToolBox, calls: Calls) -> list[Any]:
    """The tools of the episode as those of LangChain. What they refuse they say; what they give is earned."""
    return [_tool(box, calls, schema["function"]) for schema in box.schemas]


def _tool(box: ToolBox, calls: Calls, schema: dict[str, Any]) -> Any:
    session = calls.session
    for kept in _KEPT & schema["parameters"].get("properties", {}).keys():
        raise ValueError(
            f"the tool {schema['name']} has a parameter {kept}, which LangChain keeps for itself; rename it"
        )

    async def use(**arguments: Any) -> str:
        call = ToolCall(schema["name"], arguments, "ok", (0, 0))
        try:
            (result,) = await box.run([call], session.turns, calls.messages, session.span)
        except EpisodeFailure as failure:  # a graph may show it to the model as a mistake of its own
            calls.fail(failure)
            raise
        if result.reward:
            session.reward(result.reward)
        session.count(f"tools/{result.status}")
        count_figures(session, f"tools/{call.name}", result.metrics)
        return result.response.for_readers()

    tools = optional("langchain_core.tools", "langgraph")
    return tools.StructuredTool(
        name=schema["name"], description=schema["description"], args_schema=schema["parameters"], coroutine=use
    )
