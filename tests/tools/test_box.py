"""A box answers every call, whatever tools do, and releases what it created exactly once."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.toolcalls import ToolCall
from turnwise.tools import (
    BaseTool,
    FunctionTool,
    ToolBox,
    ToolContext,
    ToolError,
    ToolFault,
    ToolResponse,
    ToolResult,
    Toolset,
    function_tool,
)

NOTHING = {"type": "object", "properties": {}}


def call(name: str = "tool", **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, "ok", (0, 1))


class Counter(BaseTool):
    """Counts its calls of one episode, and writes down what happens to it."""

    def __init__(self, name: str = "tool", behave: Callable[[int], Any] = str, **config: Any):
        super().__init__(config, {"name": name, "description": "Count.", "parameters": NOTHING})
        self.behave = behave
        self.counts: dict[str, int] = {}
        self.events: list[str] = []

    async def create(self, instance_id=None):
        self.events.append(f"create {instance_id}")
        self.counts[instance_id] = 0
        return None, ToolResponse()

    async def execute(self, instance_id, parameters):
        self.counts[instance_id] += 1
        answer = self.behave(self.counts[instance_id])
        return await answer if asyncio.iscoroutine(answer) else answer

    async def release(self, instance_id):
        del self.counts[instance_id]
        self.events.append(f"release {instance_id}")


def play(tools: Any, *turns: list[ToolCall], **options: Any) -> list[list[ToolResult]]:
    """The answers to these turns of one episode."""

    async def episode() -> list[list[ToolResult]]:
        async with Toolset(tools, **{"max_parallel_calls": 9, **options}).open("e1") as box:
            return [await box.run(turn) for turn in turns]

    return asyncio.run(episode())


def answer(tool: Any, one: ToolCall | None = None, **options: Any) -> ToolResult:
    return play([tool], [one or call()], **options)[0][0]


def raises(error: BaseException) -> Callable[[int], Any]:
    def behave(count: int) -> Any:
        raise error

    return behave


# -- the life of a tool


def test_state_lives_from_one_call_to_the_next_and_ends_with_the_episode():
    tool = Counter()
    answers = play([tool], [call()], [call(), call()])
    assert [[one.response.text for one in turn] for turn in answers] == [["1"], ["2", "3"]]
    assert tool.events == ["create e1/tool", "release e1/tool"]


def test_a_tool_that_is_not_used_is_not_created():
    tool, eager = Counter(), Counter("eager", eager_create=True)
    play([tool, eager], [])
    assert tool.events == []
    assert eager.events == ["create e1/eager", "release e1/eager"]


def test_the_newest_is_released_first():
    released: list[str] = []
    tools = [Counter(name) for name in "abc"]
    for tool in tools:
        tool.events = released
    play(tools, [call("b")], [call("a")], [call("c")])
    assert released[3:] == ["release e1/c", "release e1/a", "release e1/b"]


def test_two_calls_at_once_create_one_instance():
    tool = Counter(behave=lambda count: asyncio.sleep(0, str(count)))
    play([tool], [call(), call(), call()])
    assert tool.events == ["create e1/tool", "release e1/tool"]


@pytest.mark.parametrize("end", ["error", "cancel", "fault"])
def test_release_runs_once_however_the_episode_ends(end: str):
    tool = Counter(behave=raises(ToolFault("down")) if end == "fault" else str)

    async def episode(box: ToolBox, started: asyncio.Event) -> None:
        async with box:
            await box.run([call()])
            started.set()
            if end == "error":
                raise KeyError
            await asyncio.sleep(60)

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(episode(Toolset([tool]).open("e1"), started))
        if end == "cancel":
            await started.wait()
            task.cancel()
        with pytest.raises({"error": KeyError, "cancel": asyncio.CancelledError, "fault": ToolFault}[end]):
            await task

    asyncio.run(main())
    assert tool.events == ["create e1/tool", "release e1/tool"]


def test_cancelled_inside_a_call_the_tool_is_cancelled_and_released():
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise

    tool = Counter(behave=lambda count: hang())

    async def main() -> None:
        async def episode() -> None:
            async with Toolset([tool]).open("e1") as box:
                await box.run([call()])

        task = asyncio.create_task(episode())
        while not tool.counts:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
    assert cancelled == ["yes"]
    assert tool.events == ["create e1/tool", "release e1/tool"]


def test_after_a_timeout_the_next_call_begins_afresh():
    tool = Counter(behave=lambda count: asyncio.sleep(60) if len(tool.events) == 1 else str(count), timeout_s=0.05)
    (slow,), (good,) = play([tool], [call()], [call()])
    assert (slow.status, slow.response.text) == ("timeout", "tool did not answer within 0.05 s.")
    assert (good.status, good.response.text) == ("ok", "1")
    assert tool.events == ["create e1/tool", "release e1/tool"] * 2


class Fresh(Counter):
    """Gives each instance a name of its own."""

    async def create(self, instance_id=None):  # type: ignore[override]
        name = "abc"[len(self.counts)]
        await super().create(name)
        return name, ToolResponse()

    async def release(self, instance_id):
        self.events.append(f"release {instance_id}")


def test_a_timeout_releases_the_instance_that_it_used_and_no_other():
    """The first call hangs, then the third; the fourth begins in between, with an instance of its own."""
    answers: Any = iter((asyncio.sleep(60), asyncio.sleep(0.1), asyncio.sleep(60), "good"))
    tool = Fresh(behave=lambda count: next(answers), timeout_s=0.2, max_concurrency=2)
    (results,) = play([tool], [call()] * 4)
    assert [one.status for one in results] == ["timeout", "ok", "timeout", "ok"]
    assert tool.events == ["create a", "release a", "create b", "release b"]


def test_a_release_that_fails_is_counted_and_keeps_nobody():
    class Sticky(Counter):
        async def release(self, instance_id):
            raise OSError

    first, second = Sticky("a"), Counter("b")

    async def episode() -> ToolBox:
        async with Toolset([second, first], max_parallel_calls=2).open("e1") as box:
            await box.run([call("b"), call("a")])
        return box

    assert asyncio.run(episode()).counts == {"ok": 2, "release_error": 1}
    assert second.events[-1] == "release e1/b"


def test_a_tool_that_cannot_begin_ends_the_episode_and_releases_the_others():
    class Broken(Counter):
        async def create(self, instance_id=None):
            raise OSError("no disk")

    good, broken = Counter("good", eager_create=True), Broken("broken", eager_create=True)
    with pytest.raises(ToolFault, match="OSError: no disk"):
        play([good, broken], [])
    assert good.events == ["create e1/good", "release e1/good"]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(
    ("error", "lost"), [(OSError("no disk"), True), (TypeError("no truth"), True), (ToolError("not now"), False)]
)
def test_what_cannot_be_created_is_no_fault_of_the_models(error: Exception, lost: bool, eager: bool):
    class Broken(Counter):
        async def create(self, instance_id=None):
            raise error

    tool = Broken(eager_create=eager)
    if lost or eager:
        with pytest.raises(ToolFault, match=f"begin the episode: .*{error}"):
            play([tool], [call()])
    else:
        assert play([tool], [call()])[0][0].status == "tool_error"


def test_a_tool_that_hangs_as_it_begins_is_no_fault_of_the_models():
    class Hangs(Counter):
        async def create(self, instance_id=None):
            await asyncio.sleep(60)

    with pytest.raises(ToolFault, match="tool cannot begin the episode: tool did not answer"):
        play([Hangs(timeout_s=0.05)], [call()])


# -- what a sample passes on


class Spelt(BaseTool):
    """Takes its arguments by name."""

    def get_openai_tool_schema(self):
        return {"name": "tool", "description": "Answer.", "parameters": NOTHING}

    async def create(self, instance_id=None, truth="?"):
        self.truth = truth
        return "my own id", ToolResponse(f"Ready for {truth}.")

    async def execute(self, instance_id, parameters, agent_data, factor=1, **kwargs):
        return f"{instance_id} {agent_data.turn} {factor} {sorted(kwargs)}", 0.5 * factor, {"calls": 1}

    async def calc_reward(self, instance_id, calc_reward_kwargs):
        return calc_reward_kwargs["scale"]


def test_a_samples_arguments_reach_the_methods_that_name_them():
    groups = {
        "create_kwargs": {"truth": "42"},
        "execute_kwargs": {"factor": 3, "more": 1},
        "calc_reward_kwargs": {"scale": 2},
    }

    async def episode() -> Any:
        async with Toolset([Spelt()]).open("e1", tools_kwargs={"tool": groups}) as box:
            (result,) = await box.run([call()], turn=4)
            return box.created, result, await box.final_rewards()

    created, result, rewards = asyncio.run(episode())
    assert created == [("tool", ToolResponse("Ready for 42."))]
    assert result.response.text == "my own id 4 3 ['execute_kwargs', 'more']"
    assert (result.reward, result.metrics) == (1.5, {"calls": 1})
    assert rewards == {"tool": 2.0}


class Submission(Counter):
    """Wants to be called."""

    async def calc_reward(self, instance_id):
        return 1.0 if self.counts[instance_id] else -0.5


@pytest.mark.parametrize(("calls", "reward"), [([], -0.5), ([call()], 1.0)])
def test_a_tool_that_judges_the_episode_is_asked_though_nobody_called_it(calls, reward):
    tool = Submission()

    async def episode() -> Any:
        async with Toolset([tool, Counter("other")]).open("e1") as box:
            if calls:
                await box.run(calls)
            return await box.final_rewards()

    assert asyncio.run(episode()) == {"tool": reward}
    assert tool.events == ["create e1/tool", "release e1/tool"]


def test_both_published_conventions_of_create_work():
    seen: list[Any] = []

    class Gathers(Counter):
        async def create(self, instance_id=None, **kwargs):
            seen.append(kwargs)
            return await super().create(instance_id)

    async def episode() -> None:
        box = Toolset([Gathers()]).open("e1", tools_kwargs={"tool": {"create_kwargs": {"a": 1}}})
        async with box:
            await box.run([call()])

    asyncio.run(episode())
    assert seen == [{"a": 1, "create_kwargs": {"a": 1}}]


@pytest.mark.parametrize(
    ("selection", "groups", "said"),
    [
        (["tol"], {}, "the sample names the tool 'tol'; did you mean 'tool'"),
        (None, {"tol": {}}, "did you mean 'tool'"),
        (None, {"tool": {"creat_kwargs": {}}}, "did you mean 'create_kwargs'"),
        (None, {"tool": {"create_kwargs": {"truht": 1}}}, "has truht, which Spelt.create does not take"),
        (None, {"tool": {"create_kwargs": 3}}, "write keys and values"),
        (None, {"tool": {"execute_kwargs": {"parameters": 3}}}, "has a reserved name"),
    ],
)
def test_what_no_tool_would_see_is_refused(selection: Any, groups: Any, said: str):
    with pytest.raises(ValueError, match=said):
        Toolset([Spelt()]).open("e1", selection, groups)


def test_a_sample_may_have_some_of_the_tools():
    async def episode() -> Any:
        async with Toolset([Counter("a"), Counter("b")], max_parallel_calls=2).open("e1", ["b"]) as box:
            return [one["function"]["name"] for one in box.schemas], list(box.parameters), await box.run([call("a")])

    schemas, parameters, (result,) = asyncio.run(episode())
    assert schemas == parameters == ["b"]
    assert (result.status, result.response.text) == ("unknown_tool", "There is no tool 'a'. Available tools: b.")


def test_names_do_not_collide():
    with pytest.raises(ValueError, match="two tools are called 'tool'"):
        Toolset([Counter(), Spelt()])


# -- many calls


def test_replies_come_in_the_order_of_calls_and_calls_run_side_by_side():
    order: list[str] = []
    gate = [asyncio.Event(), asyncio.Event()]

    @function_tool
    async def wait(number: int) -> str:
        """Wait for the other.

        Args:
            number: Which.
        """
        gate[number].set()
        await gate[1 - number].wait()
        order.append(str(number))
        return str(number)

    answers = play([wait], [call("wait", number=0), call("wait", number=1)])[0]
    assert [one.response.text for one in answers] == ["0", "1"]
    assert sorted(order) == ["0", "1"]


def test_calls_beyond_the_limit_are_refused_and_broken_ones_do_not_count():
    broken = ToolCall("", {}, "invalid_json", (0, 1), "it is not JSON")
    answers = play([Counter()], [broken, call(), call()], max_parallel_calls=1)[0]
    assert [one.status for one in answers] == ["invalid_json", "ok", "too_many_calls"]
    assert answers[2].response.text == "This call was not made: at most 1 may be made in one turn."


@pytest.mark.parametrize(("config", "most"), [({}, 6), ({"serial": True}, 2), ({"max_concurrency": 3}, 3)])
def test_limits_of_calls_at_the_same_time(config: dict[str, Any], most: int):
    running, peak = 0, 0

    async def behave() -> str:
        nonlocal running, peak
        running, peak = running + 1, max(peak, running + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return "done"

    tool = Counter(behave=lambda count: behave(), **config)
    tools = Toolset([tool], max_parallel_calls=3)

    async def episode(name: str) -> None:
        async with tools.open(name) as box:
            await box.run([call(), call(), call()])

    async def batch() -> None:
        await asyncio.gather(episode("e1"), episode("e2"))

    asyncio.run(batch())
    assert peak == most


def test_the_limit_holds_for_creation_release_and_rewards_too():
    running, peak = 0, 0

    async def busy() -> None:
        nonlocal running, peak
        running, peak = running + 1, max(peak, running + 1)
        await asyncio.sleep(0.001)
        running -= 1

    class Costly(Counter):
        async def create(self, instance_id=None):
            await busy()
            return await super().create(instance_id)

        async def calc_reward(self, instance_id):
            await busy()
            return 0.0

        async def release(self, instance_id):
            await busy()

    tools = Toolset([Costly(eager_create=True, max_concurrency=2)])

    async def episode(name: str) -> None:
        async with tools.open(name) as box:
            await box.final_rewards()

    async def batch() -> None:
        await asyncio.gather(*(episode(f"e{n}") for n in range(8)))

    asyncio.run(batch())
    assert peak == 2


def test_serial_calls_are_made_in_the_order_written():
    order: list[int] = []

    class Slow(Counter):
        async def execute(self, instance_id, parameters, agent_data):
            await asyncio.sleep(0.01 / (1 + len(order)))
            order.append(parameters["n"])
            return "ok"

        def validate(self, arguments):
            return dict(arguments)

    play([Slow(serial=True)], [call(n=number) for number in range(4)])
    assert order == [0, 1, 2, 3]


# -- what goes wrong


async def _exits() -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (raises(ValueError("first line\nsecond line")), "tool failed: ValueError: first line"),
        (raises(KeyError()), "tool failed: KeyError"),
        (raises(TimeoutError("the page")), "tool failed: TimeoutError: the page"),
        (raises(ToolError("no page 7")), "tool failed: no page 7"),
        (raises(asyncio.CancelledError()), "tool failed: RuntimeError: it cancelled itself"),
        (raises(ExceptionGroup("several", [OSError()])), "tool failed: ExceptionGroup: several (1 sub-exception)"),
        (lambda count: _exits(), "tool failed: it tried to exit (3)"),
        (raises(ValueError("x" * 10_000)), f"tool failed: ValueError: {'x' * 300}"),
    ],
)
def test_what_a_tool_raises_goes_back_to_the_model(behave: Any, said: str):
    result = answer(Counter(behave=behave))
    assert (result.status, result.response.text, result.reward) == ("tool_error", said, 0.0)


class Unspeakable:
    def __str__(self) -> str:
        raise KeyError


@pytest.mark.parametrize(
    "value",
    [
        *[("a", float("nan")), ("a", float("-inf")), ("a", 10**400), ("a", "b"), (), ("a", 1, {}, 2), ("a", b"2")],
        *[Unspeakable(), [Unspeakable()], object(), [object()], iter([1]), {"a": float("nan")}, ("a", "2")],
    ],
)
def test_what_the_author_got_wrong_is_no_lesson_for_the_model(value: Any):
    with pytest.raises(ToolFault, match="tool tool answered wrongly"):
        answer(Counter(behave=lambda count: value))


def test_a_parameter_may_have_any_name():
    @function_tool("tool")
    def plot(function: str) -> str:
        """Plot a function.

        Args:
            function: Of x.
        """
        return function

    assert answer(plot, call(function="2 * x")).response.text == "2 * x"


def test_a_number_that_cannot_be_checked_is_told_to_the_model():
    number = {"type": "number", "multipleOf": 0.5}
    schema = {"name": "tool", "parameters": {"type": "object", "properties": {"x": number}}}
    assert answer(FunctionTool(str, schema=schema), call(x=10**400)).status == "invalid_arguments"


def test_a_fault_waits_for_the_other_calls():
    ended: list[str] = []

    async def slow() -> str:
        await asyncio.sleep(0.02)
        ended.append("slow")
        return "done"

    tools = [Counter("bad", behave=raises(ToolFault("service down"))), Counter("good", behave=lambda count: slow())]
    with pytest.raises(ToolFault, match="service down"):
        play(tools, [call("bad"), call("good")])
    assert ended == ["slow"]


@function_tool("tool", timeout_s=0.1)
def hang() -> None:
    """Never return."""
    threading.Event().wait()


@function_tool("tool")
def leave() -> None:
    """End the process."""
    sys.exit("bye")


@function_tool("tool")
def stop() -> None:
    """Raise what no future can hold."""
    raise StopIteration("enough")


def test_plain_functions_that_hang_or_leave_are_survived():
    assert answer(hang).status == "timeout"
    assert answer(leave).response.text == "tool failed: it tried to exit (bye)"
    assert answer(stop).response.text == "tool failed: RuntimeError: StopIteration: enough"


def test_many_hanging_functions_hold_up_nobody():
    fast = FunctionTool(lambda: "done", "fast", {"name": "fast", "description": "Be quick.", "parameters": NOTHING})
    answers = play([hang, fast], [call()] * 40, [call("fast")], max_parallel_calls=40)
    assert [one.status for one in answers[0]] == ["timeout"] * 40
    assert answers[1][0].response.text == "done"


def test_plain_functions_do_not_run_on_the_event_loop():
    @function_tool("tool")
    def where() -> bool:
        """Tell the thread."""
        return threading.current_thread() is threading.main_thread()

    assert answer(where).response.text == "false"


def test_a_busy_loop_does_not_turn_an_answer_into_a_timeout():
    started = threading.Event()

    @function_tool("tool", timeout_s=0.2)
    def quick() -> str:
        """Be quick."""
        started.set()
        return "in time"

    async def episode() -> list[ToolResult]:
        async with Toolset([quick]).open("e1") as box:
            task = asyncio.create_task(box.run([call()]))
            while not started.is_set():
                await asyncio.sleep(0)
            time.sleep(0.5)  # as a forward pass of the model does
            return await task

    assert asyncio.run(episode())[0].response.text == "in time"


def test_a_failed_call_is_tried_again_if_the_tool_wants_that():
    tool = Counter(behave=lambda count: "done" if count == 3 else raises(OSError())(count), retries=2)
    assert answer(tool).response.text == "done"
    assert answer(Counter(behave=raises(OSError()), retries=1)).status == "tool_error"


def test_a_service_that_is_down_is_tried_again_before_the_episode_is_lost():
    tool = Counter(behave=lambda count: "done" if count == 3 else raises(ToolFault("down"))(count), retries=2)
    assert answer(tool).response.text == "done"
    with pytest.raises(ToolFault, match="down"):
        answer(Counter(behave=raises(ToolFault("down")), retries=1))


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [
        (
            ToolCall("sing", {}, "unknown_tool", (0, 1), "no"),
            "unknown_tool",
            "There is no tool 'sing'. Available tools: tool.",
        ),
        (
            ToolCall("", {}, "invalid_json", (0, 1), "a comma"),
            "invalid_json",
            "could not be read: a comma. Write a call like this:\nEXAMPLE",
        ),
        (ToolCall("tool", {}, "invalid_arguments", (0, 1), "a list"), "invalid_arguments", "could not be read: a list"),
        (ToolCall("", {}, "unclosed_block", (0, 1), "a tag"), "malformed_call", "could not be read: a tag"),
        (ToolCall("", {}, "missing_name", (0, 1), "a name"), "malformed_call", "could not be read: a name"),
        (ToolCall("", {}, "malformed_structure", (0, 1), "it"), "malformed_call", "could not be read: it"),
        (ToolCall("tool", {"a": ["\ud83d"]}, "ok", (0, 1)), "invalid_arguments", "was not made: no valid text"),
        (
            ToolCall("tool", {"a": 1}, "ok", (0, 1)),
            "invalid_arguments",
            "The call of tool was not made: Additional properties",
        ),
    ],
)
def test_every_broken_call_gets_an_answer(broken: ToolCall, status: str, said: str):
    tool = Counter()
    result = answer(tool, broken, example="EXAMPLE")
    assert result.status == status
    assert said in (result.response.text or "")
    assert tool.events == []  # it was not even created


def test_what_happened_is_counted():
    async def episode() -> ToolBox:
        async with Toolset([Counter()], max_parallel_calls=1).open("e1") as box:
            await box.run([call(), call(), call("sing")])
            await box.run([call()])
        return box

    # Of the first turn one call is made; the others are beyond the limit, and one of them names no tool.
    assert asyncio.run(episode()).counts == {"ok": 2, "too_many_calls": 1, "unknown_tool": 1}


def test_a_huge_reply_is_shortened():
    text = answer(Counter(behave=lambda count: "x" * 10_000_000)).response.text
    assert text == f"{'x' * 128}...(truncated)...{'x' * 128}"


def test_half_a_character_reaches_no_tokenizer():
    assert answer(Counter(behave=lambda count: "a\ud83d")).response.text == "a?"


def test_a_function_sees_where_it_is_if_it_asks():
    @function_tool("tool")
    def where(context: ToolContext) -> str:
        """Tell the episode."""
        return f"{context.episode} {context.turn} {context.messages}"

    async def episode() -> list[ToolResult]:
        async with Toolset([where]).open("e1") as box:
            return await box.run([call()], turn=3, messages=[{"role": "user", "content": "hi"}])

    assert asyncio.run(episode())[0].response.text == "e1 3 ({'role': 'user', 'content': 'hi'},)"


def test_a_tool_with_plain_methods_is_a_tool():
    class Plain(BaseTool):
        def create(self, instance_id=None):  # type: ignore[override]
            return instance_id, ToolResponse()

        def execute(self, instance_id, parameters):  # type: ignore[override]
            return str(threading.current_thread() is threading.main_thread())

        def release(self, instance_id):  # type: ignore[override]
            pass

    assert answer(Plain({}, {"name": "tool", "description": "", "parameters": NOTHING})).response.text == "False"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"max_concurrency": 0}, "max_concurrency is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"serial": "false"}, "serial is 'false'"),
        ({"eager_create": 1}, "eager_create is 1"),
        ({"type": "mcp"}, "config.type is 'mcp'"),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        Counter(**limits)
