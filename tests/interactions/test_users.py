"""The users that ship."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hosting import says, server

from turnwise.interactions import BaseInteraction, Interactions, UserTurn
from turnwise.interactions.gsm8k import Gsm8kInteraction
from turnwise.interactions.hosted import HostedUser
from turnwise.interactions.scripted import Scripted
from turnwise.types import Message


def talk(user: BaseInteraction, replies: Sequence[str], **kwargs: Any) -> list[UserTurn]:
    """The turns of a user whom the model tells these replies, until the dialogue is done."""

    async def episode() -> list[UserTurn]:
        messages: list[Message] = [{"role": "system", "content": "secret"}, {"role": "user", "content": "Hello."}]
        turns: list[UserTurn] = []
        async with Interactions([user]).open("e1", kwargs) as dialogue:
            for reply in replies:
                messages.append({"role": "assistant", "content": reply})
                turns.append(await dialogue.reply(messages))
                if turns[-1].done:
                    break
                messages.append({"role": "user", "content": turns[-1].text})
        return turns

    return asyncio.run(episode())


def test_a_script_is_said_line_by_line():
    turns = talk(Scripted({"script": ["One?", "Two?"]}), ["a"] * 5)
    assert turns == [UserTurn(False, "One?", 0.0), UserTurn(False, "Two?", 0.0), UserTurn(True, "", 0.0)]


def test_a_sample_may_bring_its_own_script():
    user = Scripted({"script": ["One?"]})
    assert [turn.text for turn in talk(user, ["a"] * 3, script=["Own?"])] == ["Own?", ""]
    assert "script is 3" in talk(user, ["a"], script=3)[0].error


def test_the_solver_is_sent_back_until_the_answer_is_right():
    first, second, third = talk(Gsm8kInteraction(), ["#### 5", "It is 72.", "#### 72", "#### 1"], ground_truth="72")
    assert (first.done, first.reward, second.reward) == (False, 0, 0)
    assert "wrong" in first.text and "72" not in first.text
    assert (third.done, third.reward) == (True, 1)


def test_how_the_solvers_answers_are_read_is_configured():
    assert talk(Gsm8kInteraction({"method": "flexible"}), ["It is 72."], ground_truth=72)[0].reward == 1


# -- a user played by another model

PERSONA = "You want to buy {thing}. Say DONE when you have it."


def hosted(url: str, **config: Any) -> HostedUser:
    return HostedUser({"model": f"{url}#m", "persona": PERSONA, "endings": {"DONE": 1.0, "BYE": -1.0}, **config})


def test_the_other_model_sees_the_dialogue_from_its_side():
    with server(lambda asked: says("How much?" if len(asked["messages"]) < 5 else "Thanks.\nDONE")) as (url, seen):
        turns = talk(hosted(url, max_tokens=9, temperature=0), ["We have apples.", "Two crowns."], thing="apples")
    assert turns == [UserTurn(False, "How much?", 0.0), UserTurn(True, "Thanks.\nDONE", 1.0)]
    assert [request["messages"] for request in seen][1] == [
        {"role": "system", "content": "You want to buy apples. Say DONE when you have it."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "We have apples."},
        {"role": "assistant", "content": "How much?"},
        {"role": "user", "content": "Two crowns."},
    ]
    assert (seen[0]["max_tokens"], seen[0]["temperature"], seen[0]["model"]) == (9, 0, "m")
    assert seen[0]["seed"] != seen[1]["seed"]
    assert "secret" not in json.dumps(seen)


def test_roles_alternate_where_a_reply_called_tools_alone():
    messages = [
        Message(role="user", content="Buy one."),
        Message(role="assistant", content="I look."),
        Message(role="tool", content="3 crowns"),
        Message(role="assistant", content=""),
        Message(role="tool", content="4 crowns"),
        Message(role="assistant", content="Three or four?"),
    ]

    async def ask(user: HostedUser) -> None:
        await user.start_interaction("i", {"thing": "{price} apples", "price": 3})
        await user.generate_response("i", messages)

    with server(lambda _: says("Three.")) as (url, seen):
        asyncio.run(ask(hosted(url)))
    assert seen[0]["messages"] == [
        {"role": "system", "content": "You want to buy {price} apples. Say DONE when you have it."},
        {"role": "assistant", "content": "Buy one."},
        {"role": "user", "content": "I look.\nThree or four?"},
    ]


def test_a_word_inside_a_sentence_ends_nothing():
    with server(lambda _: says("I am not DONE yet")) as (url, _):
        assert not talk(hosted(url), ["a"])[0].done


def test_a_server_that_refuses_is_a_record():
    with server(lambda _: (400, {"error": {"message": "no"}})) as (url, _):
        (turn,) = talk(hosted(url), ["a"], thing="apples")
    assert turn.done and "interaction hosteduser failed" in turn.error and "refused" in turn.error


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": "http://127.0.0.1:1/v1"}, "config.model is 'http://127.0.0.1:1/v1', which names no model"),
        ({"endings": {}}, "endings is {}"),
        ({"voice": 3}, "unknown key voice"),
        ({"temperature": -1}, "temperature is -1"),
    ],
)
def test_a_mistake_is_one_sentence(config, words):
    with pytest.raises(ValueError, match=words):
        hosted("http://127.0.0.1:1/v1", **config)
