"""Whatever a program makes of its conversations, it trains what was sampled, behind what was shown."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from guests import FLAT, SCHEMA
from helpers import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from sums import HERMES, call, config

from turnwise.agents.calls import Answer, Calls
from turnwise.agents.chat import sample_of
from turnwise.agents.completions import read_completion
from turnwise.agents.responses import read_response
from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.protocols import Session, Setting
from turnwise.render import Renderer
from turnwise.toolcalls import find_format
from turnwise.types import Ending, Generation

RENDERER = Renderer(make_tokenizer(HERMES))
END = RENDERER.tokenizer.convert_tokens_to_ids("<|im_end|>")
Items = list[dict[str, Any]]  # a conversation as a program keeps it
Said = tuple[tuple[int, ...], Items]  # the ids of a prompt and of its reply, and the reply as a program is told it


def told(answer: Answer, items: Items) -> Said:
    return (*answer.prompt_ids, *answer.generation.token_ids), items


async def by_completions(calls: Calls, items: Items, stream: bool) -> Said:
    body = {"model": "", "messages": items, "tools": [SCHEMA], "stream": stream}
    asked = read_completion(json.loads(json.dumps(body)))
    answer = await calls.reply(asked.messages, asked.tools)
    if not stream:
        return told(answer, [json.loads(json.dumps(asked.whole(answer)))["choices"][0]["message"]])
    chunks = [json.loads(event.removeprefix("data: ")) for event in asked.events(answer) if "[DONE]" not in event]
    message: dict[str, Any] = {}
    for chunk in chunks:
        message |= chunk["choices"][0]["delta"]
    return told(answer, [message])


async def by_responses(calls: Calls, items: Items, stream: bool) -> Said:
    asked = read_response(json.loads(json.dumps({"model": "", "input": items, "tools": [FLAT], "stream": stream})))
    answer = await calls.reply(asked.messages, asked.tools)
    if not stream:
        return told(answer, json.loads(json.dumps(asked.whole(answer)))["output"])
    events = [json.loads(event.partition("data: ")[2]) for event in asked.events(answer)]
    return told(answer, [event["item"] for event in events if event["type"] == "response.output_item.done"])


async def by_langchain(calls: Calls, items: Items, _: bool) -> Said:
    from langchain_core.messages import convert_to_messages, convert_to_openai_messages

    from turnwise.agents.chat_model import ChatModel

    reply = await ChatModel(calls=calls).bind_tools([SCHEMA]).ainvoke(convert_to_messages(items))
    record = reply.response_metadata
    plain: Any = convert_to_openai_messages([reply])
    return (*record["prompt_ids"], *record["token_ids"]), plain


def outputs(reply: Items) -> Items:
    """Answers to the calls of a reply, in the form of either API."""
    made = [one["id"] for item in reply for one in item.get("tool_calls") or ()]
    asked = [item["call_id"] for item in reply if item.get("type") == "function_call"]
    return [{"role": "tool", "tool_call_id": id, "content": "7"} for id in made] + [
        {"type": "function_call_output", "call_id": id, "output": "7"} for id in asked
    ]


def look_of(reply: Items) -> str:
    """What a program sees of a reply, blanks around it aside."""
    content = [item.get("content") or "" for item in reply]
    said = [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in content]
    made = [one for item in reply for one in item.get("tool_calls") or ()]
    return json.dumps(["".join(said).strip(), made, [one["call_id"] for one in reply if "call_id" in one]])


@dataclass(frozen=True)
class Ask:
    past: int  # which of the conversations so far goes on
    says: str
    edits: bool  # puts other words into the mouth of the model
    given_up: int | None  # after so many moments; None: never
    stream: bool


ASKS = st.builds(
    Ask,
    st.integers(0, 9),
    st.sampled_from(["Go on.", "Go on. ", "é\n"]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([None, None, None, 0, 3, 9]),
    st.booleans(),
)
PIECES = [
    *("Hm.", " ", "\n", "é", "<think>", "</think>", "<tool_call>", "{}", "<tool_response>"),
    *(call("add", a=1, b=2), call("none", a=[1.0, None, {"é": "\ud83d"}])),
    *('<tool_call>{"name": "add", "arguments": "{}"}</tool_call>', '<tool_call>{"name": "add", "a": 1}</tool_call>'),
]
TOKENS = st.one_of(
    st.sampled_from([[*RENDERER.encode(text)] for text in PIECES]),
    st.integers(0, END).map(lambda token: [token]),  # half characters, and markup in the midst of a reply
)
REPLIES = st.lists(st.tuples(st.lists(TOKENS, min_size=1, max_size=6), st.booleans()), min_size=1, max_size=8)


class Dice:
    """An engine that says what it is told to say, and notes it."""

    def __init__(self, replies: Sequence[tuple[list[list[int]], bool]]):
        self.replies = replies
        self.said: list[tuple[tuple[int, ...], Generation]] = []

    async def generate(self, prompt_ids: Sequence[int], *_: Any) -> Generation:
        for _ in range(3):
            await asyncio.sleep(0)
        pieces, stopped = self.replies[len(self.said) % len(self.replies)]
        ids = (*chain(*pieces), *[END] * stopped)
        logprobs = tuple(-(place + len(self.said)) / 100 for place in range(len(ids)))
        self.said.append((tuple(prompt_ids), Generation(ids, logprobs, "stop" if stopped else "length", 0)))
        return self.said[-1][1]

    def load(self, weights: Any, version: int) -> None:
        raise AssertionError("nothing is trained here")


class Wanderer:
    """Holds several conversations, asks side by side, gives calls up, and checks that its prompts go on as they are."""

    way: Any
    rounds: Sequence[Sequence[Ask]]

    def __init__(self, setting: Setting):
        self._setting = setting

    async def run(self, session: Session) -> Ending:
        calls = Calls(session, self._setting, 100, find_format("hermes"))
        return Ending(await calls.play(self._wander(session, calls), 600))

    async def _wander(self, session: Session, calls: Calls) -> None:
        begun: Items = [{"role": one["role"], "content": one["content"]} for one in sample_of(session).prompt]
        row, reply = await Wanderer.way(calls, begun, False)
        look = (look_of(reply),)
        self._pasts, self._rows = [(begun, reply, look)], {look: [row]}
        for asks in Wanderer.rounds:
            await asyncio.gather(*(self._ask(calls, ask) for ask in asks))

    async def _ask(self, calls: Calls, ask: Ask) -> None:
        asked, reply, look = self._pasts[ask.past % len(self._pasts)]
        if ask.edits:
            reply = [{"role": "assistant", "content": "I was edited."}]
            look = (*look[:-1], look_of(reply))
        items = [*asked, *reply, *outputs(reply), {"role": "user", "content": ask.says}]
        asking = asyncio.ensure_future(Wanderer.way(calls, items, ask.stream))
        if ask.given_up is not None:
            for _ in range(ask.given_up):
                await asyncio.sleep(0)
            asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            ids, said = asking.result()
            # Of replies that look the same nobody knows which is meant; any of them was sampled.
            assert ask.edits or any(ids[: len(row)] == row for row in self._rows[look])
            look = (*look, ask.says.strip(), look_of(said))
            self._pasts.append((items, said, look))
            self._rows.setdefault(look, []).append(ids)


@pytest.mark.parametrize("way", [by_completions, by_responses, by_langchain])
def test_what_is_sampled_is_trained_behind_what_is_shown(way: Any):
    if way is by_langchain:
        pytest.importorskip("langchain_core.messages")

    @settings(max_examples=25, deadline=None)
    @given(REPLIES, st.lists(st.lists(ASKS, min_size=1, max_size=3), max_size=5))
    def check(replies: Any, rounds: Any):
        Wanderer.way, Wanderer.rounds = staticmethod(way), rounds
        engine = Dice(replies)
        collector = Collector(
            config({"use": f"{__name__}:Wanderer"}, reward=None, environment={"max_failures": 1}), RENDERER
        )
        try:
            (segment,) = collector.collect(engine)
        finally:
            collector.close()
        assert [(turn.prompt_ids, turn.generation) for turn in segment.turns] == engine.said
        batch = pack([segment])
        assert batch.tokens[batch.sampled].tolist() == [token for _, one in engine.said for token in one.token_ids]
        places, starts = batch.sampled.nonzero()[:, 0].tolist(), batch.row_starts.tolist()
        for prompt, one in engine.said:
            row = max(start for start in starts if start <= places[0])
            assert tuple(batch.tokens[row : places[0]].tolist()) == prompt
            del places[: len(one.token_ids)]

    check()
