"""What the teachers of the embedded models show."""

import re
from collections import Counter
from typing import Any

import pytest

from turnwise.envs.babyai import BabyAIText
from turnwise.envs.frozenlake import FrozenLakeText
from turnwise.models.playing import play
from turnwise.models.teach_babyai import MOVES, BabyAITeacher
from turnwise.models.teach_games import GAMES, GamesTeacher, Lesson
from turnwise.parse import ThinkAct

CUE = "Well?"


def show(guesses: float, seed: int = 0, turns: int = 60):
    return list(play(FrozenLakeText(), CUE, turns, 8, lambda _: guesses, seed, "lake"))


def actions(guesses: float) -> list[str]:
    return [one.reply.splitlines()[-1] for one in show(guesses)]


def test_the_same_seed_shows_the_same():
    assert show(0.5) == show(0.5) != show(0.5, seed=1)


def test_who_never_guesses_plays_as_the_expert_does_and_whoever_always_does_plays_anything():
    lake = FrozenLakeText()
    for one in play(lake, CUE, 40, 8, lambda _: 0.0, 0, "lake"):
        assert one.reply.endswith(f"ACTION: {lake.expert()}")  # the move is made when the next one is asked for
    assert {action.removeprefix("ACTION: ") for action in actions(1.0)} == set(lake.actions)


class Watched(FrozenLakeText):
    """Remembers, level by level, which moves were the expert's."""

    def __init__(self):
        super().__init__()
        self.levels: list[list[bool]] = []

    def reset(self, **arguments: Any):
        self.levels.append([])
        return super().reset(**arguments)

    def step(self, action: str):
        self.levels[-1].append(action == self.expert())
        return super().step(action)


def test_a_level_begins_after_some_moves_of_the_expert_that_are_not_shown():
    lake = Watched()
    shown = list(play(lake, CUE, 40, 1, lambda _: 1.0, 0, "lake", ahead=2))
    assert len(shown) == 40 and {len(moves) for moves in lake.levels} == {1, 2, 3}
    assert all(all(moves[:-1]) for moves in lake.levels)
    assert not all(moves[-1] for moves in lake.levels)


def test_guesses_may_depend_on_what_the_expert_would_do():
    lake = Watched()
    list(play(lake, CUE, 60, 8, lambda expert: float(expert == "Down"), 0, "lake"))
    assert any(not move for moves in lake.levels for move in moves)
    list(play(lake := Watched(), CUE, 60, 8, lambda expert: float(expert == "nothing"), 0, "lake"))
    assert all(move for moves in lake.levels for move in moves)


def test_some_actions_are_guessed_more_often():
    shown = play(FrozenLakeText(), CUE, 2_000, 8, lambda _: 1.0, 0, "lake", often=("Up",))
    said = Counter(one.reply.rpartition("ACTION: ")[2] for one in shown)
    assert said["Up"] / 2_000 == pytest.approx(4 / 7, abs=0.05)
    assert all(said[action] / 2_000 == pytest.approx(1 / 7, abs=0.05) for action in ("Down", "Left", "Right"))


def test_prompts_show_up_to_two_turns_and_the_cue_once():
    shown = show(0.5, turns=200)
    assert {len(one.messages) for one in shown} == {2, 4, 6}
    for one in shown:
        assert [message["content"].count(CUE) for message in one.messages][-1] == 1
        assert sum(str(message["content"]).count(CUE) for message in one.messages) == 1


@pytest.mark.parametrize("game", GAMES)
def test_all_that_is_shown_of_a_game_is_valid(game: str):
    teacher = GamesTeacher(lessons={game: Lesson(0.5, turns=20)}, drill=0)
    environment = GAMES[game]()
    parser = ThinkAct(environment.actions, environment.default_action, cue=teacher.cue)
    demonstrations = teacher.demonstrations(0)
    assert len(demonstrations) == 20
    for one in demonstrations:
        action = parser.parse(one.reply)
        assert action.status == "valid" and action.thought


def test_prompts_of_a_game_remember_as_many_turns_as_its_lesson_says():
    teacher = GamesTeacher(
        lessons={"sokoban": Lesson(1.0, turns=60, memories=(0,)), "crafter": Lesson(1.0, 60, memories=(2,))},
        drill=0,
    )
    shown = teacher.demonstrations(0)
    assert {len(one.messages) for one in shown[:60]} == {2}
    assert {len(one.messages) for one in shown[60:]} == {2, 4, 6}


def test_who_wanders_need_not_fumble(monkeypatch: pytest.MonkeyPatch):
    played: list[tuple[str, str]] = []

    class Watched(BabyAIText):
        def step(self, action: str):
            played.append((self.expert(), action))
            return super().step(action)

    monkeypatch.setattr("turnwise.models.teach_babyai.BabyAIText", Watched)
    tasks = BabyAITeacher().turns
    always, never = dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, 0.0)
    BabyAITeacher(always, never, dict.fromkeys(tasks, 200), questions=0).demonstrations(0)
    handled = [(expert, action) for expert, action in played if expert not in MOVES]
    assert {expert for expert, _ in handled} == {"pick up", "drop", "toggle"}
    assert all(expert == action for expert, action in handled)
    assert any(expert != action for expert, action in played)


def test_questions_are_answered_in_the_words_of_the_text():
    demonstrations = BabyAITeacher(turns={}, questions=80).demonstrations
    shown = demonstrations(0)
    assert len(shown) == 80
    for one in shown:
        [message] = one.messages
        *lines, question = str(message["content"]).splitlines()
        asked = re.findall(r"the ([^,]+)", question)
        assert 2 <= len(asked) == len(set(asked)) <= 4
        for name, answer in zip(asked, one.reply.splitlines(), strict=True):
            named = [line for line in lines if re.match(rf"a {name} \d", line)]
            assert len(named) == 1
            assert answer == f"I see {named[0]}."
    assert shown == demonstrations(0) != demonstrations(1)


def test_a_made_up_map_has_one_place_for_each_name_that_is_asked_for():
    """And many things to be told apart, in the words of two games."""
    demonstrations = GamesTeacher(lessons={}, drill=300).demonstrations
    shown = demonstrations(0)
    worded: set[str] = set()
    for one in shown:
        [message] = one.messages
        *lines, question = str(message["content"]).splitlines()
        asked = [name.removeprefix("the ") for name in question.removeprefix("Where? ").split(", ")]
        answers = one.reply.splitlines()
        assert 2 <= len(asked) == len(set(asked)) == len(answers) <= 5
        for name, answer in zip(asked, answers, strict=True):
            named = [line for line in lines if re.match(rf"(a )?{re.escape(name)} \d", line)]
            assert len(named) == 1
            place = re.sub(r"^.*?(?=\d)", "", named[0])
            assert answer in (f"I see {named[0]}.", f"The nearest {name} is {place}.")
            worded.add(answer.split()[0])
    assert worded == {"I", "The"}
    assert max(len(str(one.messages[0]["content"]).splitlines()) for one in shown) > 10
    assert shown == demonstrations(0) != demonstrations(1)
