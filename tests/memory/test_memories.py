"""What each memory shows, read off the prompts that an engine gets."""

import asyncio
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from helpers import Scripted, make_tokenizer, play_config

from turnwise.collector import Collector
from turnwise.memory.full import Full
from turnwise.memory.note import Note
from turnwise.memory.window import Window
from turnwise.render import Renderer
from turnwise.types import Action, Generation, Message, Observation, Segment, Turn

ROLE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|$)", re.DOTALL)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


def thinking(_: str, number: int) -> str:
    """Every reply has a thought of its own."""
    return f"THINK: thought {number}\nACTION: add"


def play(renderer, memory, reply=thinking, batches=1, e_len=12, limit=5, n_env=1) -> tuple[list[Segment], Scripted]:
    config = play_config(
        memory=memory,
        environment={"kwargs": {"limit": limit}},
        rollout={"n_env": n_env, "e_len": e_len},
    )
    engine, collector = Scripted(renderer, reply), Collector(config, renderer)
    return [segment for _ in range(batches) for segment in collector.collect(engine)], engine


def chat(prompt: str) -> list[tuple[str, str]]:
    """The messages of a prompt, its open last one left out."""
    return [(role, text) for role, text in ROLE.findall(prompt)][:-1]


def observed(message: str) -> tuple[str, int]:
    """The episode and the step of an observation."""
    found = re.match(r"(E\d+) step (\d+) ", message)
    assert found, message
    return found[1], int(found[2])


def prompts(renderer: Renderer, segments: list[Segment]) -> list[list[tuple[str, str]]]:
    tokenizer: Any = renderer.tokenizer
    return [chat(tokenizer.decode(turn.prompt_ids)) for one in segments for turn in one.turns]


# -- window


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 9])
def test_a_window_shows_the_last_turns_with_their_reasoning_and_none_of_another_episode(renderer, turns):
    """Episodes of 5 turns in batches of 4, so that they go on across batches."""
    segments, _ = play(renderer, {"use": "window", "turns": turns}, batches=4, e_len=4)
    seen = prompts(renderer, segments)
    assert len(seen) == 16
    names = set()
    for number, messages in enumerate(seen):
        step = number % 5
        shown = min(turns, step)
        assert [role for role, _ in messages] == ["system", *["user", "assistant"] * shown, "user"]
        name, now = observed(messages[-1][1])
        names.add(name)
        assert now == step
        assert messages[0] == ("system", f"Count in {name}.")
        assert messages[-1][1].splitlines()[1:3] == [f"Now {step}?", "What will you do next? Answer in this format:"]
        for age in range(1, shown + 1):
            past = step - age
            asked, answer = messages[-1 - 2 * age][1], messages[-2 * age][1]
            assert asked == f"{name} step {past} count {past}"  # without the cue of its moment
            assert answer == f"THINK: thought {number - age}\nACTION: add"
    assert len(names) == 4


@pytest.mark.parametrize("thoughts", [0, 1, 2, 5])
def test_only_the_newest_thoughts_are_kept(renderer, thoughts):
    segments, _ = play(renderer, {"use": "window", "turns": 3, "thoughts": thoughts}, e_len=10, limit=50)
    for number, messages in enumerate(prompts(renderer, segments)):
        answers = [text for role, text in messages if role == "assistant"]
        assert len(answers) == min(3, number)
        for age, answer in enumerate(reversed(answers), start=1):
            full = f"THINK: thought {number - age}\nACTION: add"
            assert answer == (full if age <= thoughts else "ACTION: add")


@pytest.mark.parametrize(
    ("turns", "shown"),
    [(2, [0, 1, 2, 2, 0, 1, 2, 2, 0, 1]), (9, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])],
)
def test_a_window_that_is_cleared_forgets_everything_every_so_many_turns(renderer, turns, shown):
    memory = {"use": "window", "turns": turns, "clear_every": 4}
    segments, _ = play(renderer, memory, e_len=10, limit=50)
    counts = [sum(role == "assistant" for role, _ in messages) for messages in prompts(renderer, segments)]
    assert counts == shown
    newest = [messages[-2][1] for messages in prompts(renderer, segments) if len(messages) > 2]
    assert newest == [f"THINK: thought {n - 1}\nACTION: add" for n in range(10) if n % 4]


@pytest.mark.parametrize("key", ["turns", "thoughts", "clear_every"])
def test_a_window_refuses_a_negative_number(key):
    with pytest.raises(ValueError, match=rf"memory\.{key} is -1"):
        Window(**{key: -1})


# -- invalid turns

CLUELESS = "THINK: a good plan\nACTION: fly away"


@pytest.mark.parametrize("memory", ["window", "full"])
def test_an_invalid_turn_is_shown_as_the_default_action_with_its_reasoning(renderer, memory):
    segments, _ = play(renderer, {"use": memory}, lambda _, n: CLUELESS if n == 0 else thinking(_, n), e_len=2)
    first, second = segments[0].turns
    assert renderer.text(first.generation.token_ids) == first.text == CLUELESS  # what is trained on stays
    messages = chat(renderer.tokenizer.decode(second.prompt_ids))
    assert messages[-2] == ("assistant", "THINK: a good plan\nACTION: wait")
    assert "fly" not in str(messages)


@pytest.mark.parametrize("said", ["I would rather talk.", "ACTION: go to bed", "ACTION:"])
def test_an_invalid_turn_without_its_reasoning_is_the_bare_default(renderer, said):
    memory = {"use": "window", "thoughts": 0}
    segments, _ = play(renderer, memory, [said], e_len=2)
    assert prompts(renderer, segments)[1][-2] == ("assistant", "ACTION: wait")


@pytest.mark.parametrize(("said", "status"), [("ACTION: **Add**.", "valid"), ("ACTION: increase", "translated")])
@pytest.mark.parametrize("memory", ["window", "full"])
def test_a_turn_that_was_understood_is_shown_as_it_was_said(renderer, memory, said, status):
    """There is nothing to unlearn: its sampled ids stand in the next prompt."""
    segments, _ = play(renderer, {"use": memory}, [said], e_len=2)
    first, second = segments[0].turns
    assert first.action and (first.action.status, first.action.text) == (status, "add")
    ids = first.generation.token_ids
    assert any(second.prompt_ids[at : at + len(ids)] == ids for at in range(len(second.prompt_ids)))


# -- full


def test_full_only_appends(renderer):
    """Also after replies that the length limit cut."""
    replies = ["THINK: so\nACTION: add", "ACTION: wait\nand then...", "ACTION: add"]
    segments, _ = play(renderer, {"use": "full"}, replies, batches=3, e_len=4, limit=7)
    turns = [turn for segment in segments for turn in segment.turns]
    joined = 0
    for before, after in pairwise(turns):
        extended = (*before.prompt_ids, *before.generation.token_ids)
        same_episode = before.observation.instructions == after.observation.instructions
        assert (after.prompt_ids[: len(extended)] == extended) == same_episode
        joined += same_episode
    assert joined == 10  # of 11 pairs one is astride two episodes
    final = segments[0].final_prompt_ids
    last = segments[0].turns[-1]
    extended = (*last.prompt_ids, *last.generation.token_ids)
    assert final[: len(extended)] == extended


def test_full_shows_every_past_turn_as_it_was_asked(renderer):
    segments, _ = play(renderer, {"use": "full"}, e_len=6, limit=6)
    for step, messages in enumerate(prompts(renderer, segments)):
        asked = [text for role, text in messages if role == "user"]
        assert len(asked) == step + 1
        for now, text in enumerate(asked):
            assert observed(text)[1] == now
            assert f"\nNow {now}?\n" in text


# -- note


def noting(prompt: str, number: int) -> str:
    return f"note {number}" if "must remember" in prompt else f"THINK: thought {number}\nACTION: add"


def test_a_note_is_asked_for_once_a_turn_from_the_second_on(renderer):
    """Two episodes of 3 turns, in batches of 2: what is asked counts for nothing in the size of a batch."""
    segments, _ = play(renderer, {"use": "note"}, noting, batches=3, e_len=2, limit=3)
    turns = [turn for segment in segments for turn in segment.turns]
    assert [turn.of_memory for turn in turns] == [False, True, False, True, False] * 2
    assert [turn.text for turn in turns if turn.of_memory] == ["note 1", "note 3", "note 6", "note 8"]
    assert all(turn.reward == 0 and turn.action_tokens == 0 and turn.action is None for turn in turns if turn.of_memory)
    assert [len(one.turns) for one in segments] == [3, 2, 1, 4]
    assert [one.end for one in segments] == ["cut", "truncated", "cut", "truncated"]


def test_a_note_is_shown_and_nothing_else_of_the_past(renderer):
    segments, _ = play(renderer, {"use": "note"}, noting, e_len=4, limit=50)
    seen = prompts(renderer, segments)
    for messages in seen:
        assert [role for role, _ in messages] == ["system", "user"]
    name = observed(seen[0][-1][1])[0]
    asking, acting = [m[-1][1] for m in seen[1::2]], [m[-1][1] for m in seen[2::2]]
    for step, (question, task) in enumerate(zip(asking, acting, strict=True)):
        before = f"note {2 * step - 1}" if step else "nothing"
        assert question == (
            f"Your note: {before}\n{name} step {step} count {step}\nYou did: ACTION: add\n"
            "Write down in a few words what you must remember."
        )
        after = step + 1
        assert task.startswith(f"Your note: note {2 * step + 1}\n{name} step {after} count {after}\nNow {after}?\n")


def test_a_note_that_is_there_is_not_asked_for_again():
    """A run may go on from between the note and the turn that it is for."""
    generation = Generation((1,), (0.0,), "stop", 0)
    acted = Turn(Observation("then"), (0,), generation, Action("go", "valid", "go", "", 0), 0, 0.0, "go", "go", "go")
    noted = replace(acted, action=None, text="left is a wall")
    messages = messages_of(Note(), [acted, noted], 1)
    assert messages[-1]["content"].startswith("Your note: left is a wall\nnow")


def test_a_note_does_not_outlive_its_episode(renderer):
    segments, _ = play(renderer, {"use": "note"}, noting, e_len=4, limit=2)
    for messages in prompts(renderer, segments)[3:5]:
        assert "note 1" not in messages[-1][1]
    assert prompts(renderer, segments)[3][-1][1].startswith("E")


def test_the_next_prompt_of_a_note_is_the_question_and_is_asked_next(renderer):
    segments, _ = play(renderer, {"use": "note"}, noting, batches=2, e_len=2, limit=50)
    first, second = segments
    assert "must remember" in renderer.tokenizer.decode(first.final_prompt_ids)
    assert second.turns[0].of_memory
    assert second.turns[0].prompt_ids == first.final_prompt_ids


# -- by itself


def messages_of(memory, past: list[Turn], index: int) -> list[Message]:
    async def ask(_: list[Message]) -> str:
        return "a note"

    return asyncio.run(memory.prompt(past, index, Observation("now", "cue"), ask))


@pytest.mark.parametrize("memory", [Window(2), Full(), Note()])
def test_without_instructions_there_is_no_system_message(memory):
    generation = Generation((1,), (0.0,), "stop", 0)
    past = Turn(Observation("then"), (0,), generation, Action("go", "valid", "go", "", 0), 0, 0.0, "go", "go", "go")
    for history in ([], [past]):
        messages = messages_of(memory, history, len(history))
        assert {message["role"] for message in messages} <= {"user", "assistant"}
        assert messages[-1]["content"].endswith("now\ncue")
