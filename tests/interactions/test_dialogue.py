"""A dialogue ends in a record whatever the user's side does, and finalizes what it started exactly once."""

import asyncio
import math
import time
from typing import Any

import pytest

from turnwise.interactions import BaseInteraction, Interactions, UserTurn
from turnwise.types import Message

ASKED: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


class Fickle(BaseInteraction):
    """Does as the sample says, and keeps count."""

    def __init__(self, config: Any = None):
        super().__init__(config)
        self.started: list[str] = []
        self.finalized: list[str] = []

    async def start_interaction(self, instance_id: str, start: Any = None):  # type: ignore[override]
        await act(start)
        self.started.append(instance_id)
        return f"own/{instance_id}"

    async def generate_response(self, instance_id: str, messages: Any, answer: Any = None):  # type: ignore[override]
        return await act(answer)

    async def finalize_interaction(self, instance_id: str, end: Any = None) -> None:  # type: ignore[override]
        self.finalized.append(instance_id)
        await act(end)


async def act(what: Any) -> Any:
    if isinstance(what, Exception):
        raise what
    if what == "sleep":
        await asyncio.sleep(60)
    return what


def play(replies: int = 1, timeout_s: float = 30.0, **kwargs: Any) -> tuple[Fickle, list[UserTurn], str]:
    user = Fickle({"timeout_s": timeout_s})

    async def episode() -> tuple[list[UserTurn], str]:
        async with Interactions([user]).open("e1", kwargs) as dialogue:
            turns = [await dialogue.reply(ASKED) for _ in range(replies)]
        return turns, dialogue.error

    return user, *asyncio.run(episode())


def test_a_dialogue_starts_answers_and_is_finalized_under_its_own_id():
    user, turns, error = play(replies=2, answer=(False, "Go on.", 0.5, {"mood": 1}))
    assert turns == [UserTurn(False, "Go on.", 0.5, {"mood": 1})] * 2
    assert (user.started, user.finalized, error) == (["e1"], ["own/e1"], "")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"answer": KeyError("a\nkey")}, "interaction fickle failed in generate_response: KeyError: 'a\\nkey'"),
        ({"answer": SystemExit}, "answered <class 'SystemExit'>"),
        ({"answer": None}, "interaction fickle answered None; answer (done, text, finite reward"),
        ({"answer": (True, "a", 0.0)}, "answered (True, 'a', 0.0)"),
        ({"answer": ("False", "a", 0.0, {})}, "answered ('False'"),
        ({"answer": (True, None, 0.0, {})}, "answered (True, None"),
        ({"answer": (True, "a", math.nan, {})}, "answered (True, 'a', nan"),
        ({"answer": (True, "a", 10**400, {})}, "answered (True, 'a', 1000"),
        ({"answer": (True, "a", 10**5000, {})}, "answered a value of type tuple; answer (done"),
        ({"answer": (True, "a", 0.0, None)}, "answered (True, 'a', 0.0, None"),
        ({"answer": "sleep", "timeout_s": 0.05}, "interaction fickle did not answer within 0.05 s"),
    ],
)
def test_a_user_that_fails_ends_the_dialogue_with_a_record(kwargs, words):
    user, (first, second), error = play(replies=2, **kwargs)
    assert (first.done, first.text, first.reward) == (True, "", 0.0)
    assert words in first.error == second.error == error
    assert user.finalized == ["own/e1"]


@pytest.mark.parametrize(
    ("start", "words"), [(ValueError("no room"), "start_interaction: ValueError: no room"), ("sleep", "0.05 s")]
)
def test_what_never_started_is_not_finalized(start, words):
    user, (turn,), error = play(start=start, timeout_s=0.05 if start == "sleep" else 30)
    assert turn.done and words in turn.error == error
    assert user.finalized == []


def test_a_failure_at_the_end_is_told_afterwards():
    user, (turn,), error = play(answer=(True, "", 1.0, {}), end=OSError("disk"))
    assert (turn.error, turn.reward) == ("", 1.0)
    assert "finalize_interaction: OSError: disk" in error and user.finalized == ["own/e1"]


@pytest.mark.parametrize("how", ["raise", "cancel"])
def test_a_lost_episode_finalizes_too(how):
    user = Fickle()

    async def episode() -> None:
        async with Interactions([user]).open("e1", {}):
            if how == "raise":
                raise ZeroDivisionError
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # there is one
            await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError if how == "raise" else asyncio.CancelledError):
        asyncio.run(episode())
    assert user.finalized == ["own/e1"]


class Plain(BaseInteraction):
    """Without async, and without a start of its own."""

    def generate_response(self, instance_id: str, messages: Any) -> Any:  # type: ignore[override]
        time.sleep(0.01)
        return True, f"bye {instance_id} \ud800", 1, {}


def test_plain_methods_run_in_a_thread_and_texts_can_be_tokenised():
    async def episode() -> UserTurn:
        async with Interactions([Plain()]).open("e1", {}) as dialogue:
            return await dialogue.reply(ASKED)

    assert asyncio.run(episode()) == UserTurn(True, "bye e1 ?", 1.0)


def test_a_dialogue_that_is_over_says_so():
    async def episode() -> UserTurn:
        async with Interactions([Plain()]).open("e1", {}) as dialogue:
            pass
        return await dialogue.reply(ASKED)

    assert asyncio.run(episode()).error == "the dialogue is over"
