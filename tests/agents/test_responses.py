"""The Responses API: what is read of a conversation in items, and what is written in the types of OpenAI's client."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from turnwise.agents.calls import Answer
from turnwise.agents.responses import read_response
from turnwise.types import Generation, MessageCall

CALL: MessageCall = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def answer(content: str, calls: list[MessageCall], reason: Any = "stop") -> Answer:
    return Answer(content, calls, 3, (1, 2), Generation((3, 4, 5), (0.0, 0.0, 0.0), reason, 0))


ANSWERS = {
    "text": answer("Well.", []),
    "calls": answer("", [CALL, {**CALL, "id": "c2"}]),
    "both": answer("Well.", [CALL]),
    "cut": answer("We", [], "length"),
    "empty": answer("", []),
}


def test_items_become_messages():
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Well.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call", "call_id": "c3", "name": "add", "arguments": "{}"},
    ]
    tool = {"type": "function", "name": "add", "description": None, "parameters": {"type": "object"}, "strict": True}
    asked = read_response({"model": "m", "instructions": "Add up.", "input": items, "tools": [tool]})
    bare = {**CALL, "function": {"name": "add", "arguments": {}}}
    assert asked.messages == [
        {"role": "system", "content": "Add up."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Add"},
        {"role": "assistant", "content": "Well.", "tool_calls": [CALL, {**bare, "id": "c2"}]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "assistant", "content": "", "tool_calls": [{**bare, "id": "c3"}]},
    ]
    function = {"name": "add", "parameters": {"type": "object"}, "strict": True}
    assert asked.tools == [{"type": "function", "function": function}]


def test_tools_that_may_not_be_called_are_not_shown():
    tool = {"type": "function", "name": "add"}
    assert not read_response({"model": "m", "input": "Hi", "tools": [tool], "tool_choice": "none"}).tools


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_is_sent_back_is_the_same_message(case: str):
    told = ANSWERS[case]
    asked = read_response({"model": "m", "input": "Hi"})
    written = Response.model_validate(asked.whole(told), strict=True)
    assert written.output_text == told.content
    assert written.status == ("incomplete" if case == "cut" else "completed")
    assert written.usage and written.usage.total_tokens == 5
    back = json.loads(json.dumps([item.to_dict() for item in written.output]))
    (message,) = read_response({"model": "m", "input": back}).messages
    assert (message["role"], message["content"], message.get("tool_calls", [])) == (
        "assistant",
        told.content,
        list(told.calls),
    )


@pytest.mark.parametrize("case", ANSWERS)
def test_a_stream_tells_the_same_response(case: str):
    asked = read_response({"model": "m", "input": "Hi", "stream": True})
    blocks = [block.split("\n") for block in "".join(asked.events(ANSWERS[case])).split("\n\n")[:-1]]
    events = []
    for number, (kind, data) in enumerate(blocks):
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}" and event["sequence_number"] == number
        events.append(EVENT.validate_python(event))
    last = asked.whole(ANSWERS[case])
    assert events[-1].response.output == Response.model_validate(last).output
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == ANSWERS[case].content
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
