"""A hosted model is played like one of ours: the same conversation, the same replies, the same episodes."""

import asyncio
import json
import socket
import threading
from typing import Any

import pytest
from helpers import play_config
from hosting import says, server
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engines.chat import ChatEngine, Conversation
from turnwise.evaluate import play_held_out
from turnwise.players import open_player
from turnwise.types import Message, Sampling

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def ask(address: str, messages: list[Message], **sampling: Any) -> Any:
    return asyncio.run(
        ChatEngine(address).generate(Conversation().prompt(messages), Sampling(**{"max_tokens": 5, **sampling}))
    )


HELLO: list[Message] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: Any) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


# -- the codec


@given(TEXTS, st.data())
def test_a_reply_comes_back_and_its_tail_is_counted(text, data):
    codec = Conversation()
    ids = codec.reply(text)
    assert ids and codec.text(ids) == text
    start = data.draw(st.integers(0, len(text)))
    tail = codec.tokens_from(ids, start)
    assert bytes(ids[len(ids) - tail : -1]).decode() == text[start:]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_conversation_is_its_messages_without_ids(texts):
    messages: list[Message] = [{"role": "assistant", "content": text, "token_ids": (1, 2)} for text in texts]
    ids = Conversation().prompt(messages)
    assert all(0 <= id < 256 for id in ids)
    assert json.loads(bytes(ids)) == [{"role": "assistant", "content": text} for text in texts]


# -- what is sent, and what comes back


def test_the_server_gets_the_conversation_and_how_to_sample(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with server(lambda _: says("Hi \N{WAVING HAND SIGN}")) as (url, seen):
        generation = ask(f"{url}#some/model:8b", HELLO, max_tokens=7, temperature=0.5, seed=2**61 + 3)
    (request,) = seen
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["messages"]) == ("some/model:8b", HELLO)
    assert (request["max_tokens"], request["temperature"], request["seed"]) == (7, 0.5, 3)
    assert request["key"] == "Bearer secret"
    assert Conversation().text(generation.token_ids) == "Hi \N{WAVING HAND SIGN}"
    assert generation.finish_reason == "stop"


@pytest.mark.parametrize(("text", "finish", "told"), [("So", "length", "length"), (None, "stop", "stop")])
def test_a_reply_that_was_cut_or_is_empty_is_a_reply(text, finish, told):
    with server(lambda _: says(text, finish)) as (url, _):
        generation = ask(f"{url}#m", HELLO)
    assert generation.token_ids and generation.finish_reason == told
    assert Conversation().text(generation.token_ids) == (text or "")


def test_an_engine_outlives_its_event_loop():
    with server(lambda _: says("Hi")) as (url, seen):
        engine = ChatEngine(f"{url}#m")
        for _ in range(2):
            asyncio.run(engine.generate(Conversation().prompt(HELLO), Sampling(5)))
    assert len(seen) == 2


# -- what goes wrong


def test_a_server_that_is_not_there_is_one_sentence():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ValueError, match=rf"the server at {url} does not answer .*; is it running there\?"):
        ask(f"{url}#m", HELLO)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_told_in_the_words_of_the_server(status):
    refusal = {"error": {"message": "The model\nm is unknown."}}
    with server(lambda _: (status, refusal)) as (url, _), pytest.raises(ValueError, match=r"The model m is unknown\."):
        ask(f"{url}#m", HELLO)


def test_a_server_of_something_else_is_recognised():
    with server(lambda _: (200, {"hello": "world"})) as (url, _), pytest.raises(ValueError, match="does not speak"):
        ask(f"{url}#m", HELLO)


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("http://127.0.0.1:8000/v1", "#MODEL"),
        ("http://me:secret@127.0.0.1:8000/v1#m", "OPENAI_API_KEY"),
        ("https://127.0.0.1/v1?key=secret#m", "OPENAI_API_KEY"),
    ],
)
def test_an_address_names_a_model_and_holds_no_key(address, word):
    with pytest.raises(ValueError, match=word) as error:
        ChatEngine(address)
    assert "secret" not in str(error.value)


def test_a_hosted_model_cannot_be_trained():
    with pytest.raises(ValueError, match="cannot be trained"):
        ChatEngine("http://127.0.0.1:1/v1#m").load({}, 1)


# -- whole episodes


def test_through_a_server_the_embedded_model_plays_the_same_episodes():
    """Greedily, turn by turn. Our prompt limit, in tokens, does not bind a server: these prompts have more bytes."""
    config = play_config(
        "levels:Short",
        model={"path": "tiny", "device": "cpu", "precision": "fp32"},
        environment={"tasks": {"goto": {"task": "goto"}}},
        parser={"cue": "Answer with THINK: and ACTION:"},
        rollout={"max_prompt_tokens": 256, "max_reply_tokens": 32},
        evaluation={"episodes": 2, "slots": 2, "temperature": 0},
    )
    engine, renderer = open_player(config, None)
    local = play_held_out(config, engine, renderer)

    served, codec = open_player(config, None)
    taking_turns = threading.Lock()

    def answer(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        sampling = Sampling(asked["max_tokens"], asked["temperature"], seed=asked["seed"])
        with taking_turns:
            generation = asyncio.run(served.generate(codec.prompt(asked["messages"]), sampling))
        return says(codec.text(generation.token_ids), generation.finish_reason)

    with server(answer) as (url, seen):
        hosted_config = config.model_copy(update={"model": config.model.model_copy(update={"path": f"{url}#tiny"})})
        hosted = play_held_out(hosted_config, *open_player(hosted_config, None))

    assert len(hosted) == len(local) == 2
    for ours, theirs in zip(local, hosted, strict=True):
        (one,), (other,) = ours.share.segments, theirs.share.segments
        assert [turn.text for turn in one.turns] == [turn.text for turn in other.turns]
        assert [turn.action for turn in one.turns] == [turn.action for turn in other.turns]
        assert one.outcome == other.outcome
    valid = [turn.action.status == "valid" for slot in hosted for turn in slot.share.segments[0].turns if turn.action]
    assert sum(valid) > 0.9 * len(valid) > 0  # so these are replies that mean something
    assert len(seen) == sum(len(slot.share.segments[0].turns) for slot in local)
    assert {request["key"] for request in seen} == {"Bearer none"}
