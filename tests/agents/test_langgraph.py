"""Graphs of LangGraph, in this process and through the endpoint, play the turns of the tool agent."""

from typing import Any

import pytest
from helpers import Scripted, make_tokenizer
from sums import HERMES, adds, assert_same, call, config

from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.render import Renderer
from turnwise.tools import ToolFault, ToolResponse, function_tool
from turnwise.types import Segment

pytest.importorskip("langgraph.prebuilt")
NATIVE = {"use": "tool", "tools": ["sums:add"]}
SEEN: list[Any] = []


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(HERMES))


def graph_of(**keys: Any) -> dict[str, Any]:
    return {"use": "langgraph", "tools": ["sums:add"], "timeout_s": 600, **keys}


def play(renderer: Renderer, agent: dict[str, Any], **tree: Any) -> list[Segment]:
    return Collector(config(agent, {"n_env": 2}, **tree), renderer).collect(Scripted(renderer, adds))


def through_the_endpoint(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> Any:
    """The shipped graph, with LangChain's own client in the place of our model."""
    from guests import SCHEMA
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI
    from sums import add

    from turnwise.agents.langgraph import react

    chat = ChatOpenAI(base_url=base_url, api_key=api_key, model=model, timeout=600, max_retries=0)
    schema = SCHEMA["function"]

    async def use(**arguments: Any) -> str:
        return str(add(**arguments))

    tool = StructuredTool(
        name=schema["name"], description=schema["description"], args_schema=schema["parameters"], coroutine=use
    )
    return _none_of(react(chat, [tool]).compile().ainvoke({"messages": list(sample["prompt"])}))


async def _none_of(run: Any) -> None:
    await run


def chatty(model: Any) -> Any:
    """A graph of one's own: asks, keeps the record, and says what it is worth."""
    from langgraph.graph import END, START, MessagesState, StateGraph

    class State(MessagesState):
        reward: float

    async def ask(state: State) -> dict[str, Any]:
        reply = await model.ainvoke(state["messages"])
        SEEN.append(reply.response_metadata)
        return {"messages": [reply], "reward": 0.25}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph


def messy(model: Any) -> Any:
    raise KeyError("a builder of mine")


class Listing:
    """What looks like a graph, whose state is no mapping."""

    def __init__(self, model: Any):
        self.model = model

    async def ainvoke(self, given: dict[str, Any], _: Any) -> list[Any]:
        return [await self.model.ainvoke(given["messages"])]


def greedy(whatever: Any) -> Any:
    """Asks for what there is not."""


@function_tool
def photograph() -> ToolResponse:
    """Make a picture."""
    return ToolResponse("Done.", image=[b"png"])


@function_tool
def down(a: int, b: int) -> str:
    """Be out of order.

    Args:
        a: A number.
        b: Another.
    """
    raise ToolFault("the service is down")


def lenient(model: Any, tools: Any) -> Any:
    """Tells the model of whatever goes wrong."""
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    policy = model.bind_tools(tools)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await policy.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph


def broken(model: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    async def ask(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke(state["messages"])
        raise KeyError("a node of mine")

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph.compile()


def leaving(model: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    async def leave(state: MessagesState) -> dict[str, Any]:
        raise SystemExit(3)

    graph = StateGraph(MessagesState)
    graph.add_node("leave", leave)
    graph.add_edge(START, "leave")
    return graph


def test_the_shipped_graph_plays_the_turns_of_the_tool_agent(renderer):
    native, graph = play(renderer, NATIVE), play(renderer, graph_of())
    assert [len(one.turns) for one in graph] == [2, 2]
    assert_same(native, graph)
    assert len(pack(graph).row_lengths) == 2
    assert [one.outcome for one in native] == [one.outcome for one in graph]


def test_langchains_own_client_plays_them_through_the_endpoint(renderer):
    pytest.importorskip("langchain_openai")
    guest = {"function": f"{__name__}:through_the_endpoint", "timeout_s": 600}
    assert_same(play(renderer, NATIVE), play(renderer, guest))


def test_a_graph_of_ones_own_sees_the_record_of_its_turns(renderer):
    SEEN.clear()
    segments = play(renderer, graph_of(graph=f"{__name__}:chatty"), reward=None)
    turns = [turn for one in segments for turn in one.turns]
    assert [turn.reward for turn in turns] == [0.25, 0.25]
    assert sorted(seen["token_ids"] for seen in SEEN) == sorted(turn.generation.token_ids for turn in turns)
    assert all(len(seen["logprobs"]) == len(seen["token_ids"]) for seen in SEEN)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("messy", "KeyError: 'a builder of mine'"),
        ("broken", "KeyError: 'a node of mine'"),
        ("leaving", r"Exited: it tried to exit \(3\)"),
    ],
)
def test_a_graph_that_fails_loses_its_episode(renderer, graph, said):
    with pytest.raises(ValueError, match=rf"failed: {said} \(1 times in a row"):
        play(renderer, graph_of(graph=f"{__name__}:{graph}"), environment={"max_failures": 1})


@pytest.mark.parametrize("graph", ["", f"{__name__}:lenient"])
def test_a_tool_at_fault_loses_the_episode_whatever_the_graph_makes_of_it(renderer, graph):
    agent = graph_of(tools=[f"{__name__}:down"], graph=graph)
    collector = Collector(config(agent, environment={"max_failures": 1}), renderer)
    with pytest.raises(ValueError, match="the service is down"):
        collector.collect(Scripted(renderer, [call("down", a=1, b=1), "#### 7"]))


def test_a_state_that_is_no_mapping_has_no_reward(renderer):
    segments = play(renderer, graph_of(graph=f"{__name__}:Listing"), reward=None)
    assert [turn.reward for one in segments for turn in one.turns] == [0.0, 0.0]


@pytest.mark.parametrize("limit", ["max_turns", "max_tool_reply"])
def test_a_limit_of_nothing_is_refused(renderer, limit):
    with pytest.raises(ValueError, match=rf"agent\.{limit} is 0; it must be 1 or more"):
        play(renderer, graph_of(**{limit: 0}))


@pytest.mark.parametrize(
    ("graph", "said"),
    [("greedy", "asks for whatever; it can ask for model, tools, sample"), ("SEEN", "is no function")],
)
def test_mistakes_are_told_before_anything_is_played(renderer, graph, said):
    with pytest.raises(ValueError, match=said):
        Collector(config(graph_of(graph=f"{__name__}:{graph}")), renderer)


def test_a_model_that_reads_text_alone_is_told_of_a_picture(renderer):
    engine = Scripted(renderer, [call("photograph"), "#### 7"])
    Collector(config(graph_of(tools=[f"{__name__}:photograph"])), renderer).collect(engine)
    assert "Done.\n[image: not shown, as you read text alone]" in engine.prompts[1]


def test_a_tool_is_traced_in_its_turn(renderer):
    collector = Collector(config(graph_of(), log={"traces": ["jsonl"], "trace_every": 1}), renderer)
    collector.collect(Scripted(renderer, adds))
    (trace,) = collector.tally.traces
    assert [[span.name for span in turn.spans] for turn in trace.recording.turns] == [["add"], []]


def test_an_episode_that_is_too_long_is_truncated(renderer):
    for segment in play(renderer, graph_of(max_turns=1), reward=None):
        assert (len(segment.turns), segment.end) == (1, "truncated")
        assert "<tool_response>" in renderer.tokenizer.decode(segment.final_prompt_ids)


def test_a_row_whose_tools_there_are_not_is_refused_before_anything_is_played(renderer):
    made = config(graph_of(), data={"generate": {"use": "sums:Rows", "extra": {"tool_selection": ["ad"]}}})
    with pytest.raises(ValueError, match="train row 1: the sample names the tool 'ad'; did you mean 'add'"):
        Collector(made, renderer)
