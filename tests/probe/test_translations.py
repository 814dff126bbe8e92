"""What was said instead of an action is counted as a table of translations would meet it."""

import ast

from hypothesis import given
from hypothesis import strategies as st
from makers import episode, said

from turnwise.probe.translations import InvalidText, invalid_texts, nearest_actions, translation_table

ACTIONS = ("Move West", "Move East", "Do", "Sleep")


def invalid(*texts: str) -> list:
    return [episode(*(said(status="invalid", invalid=text) for text in texts))]


def test_spellings_of_one_text_are_counted_together():
    texts = invalid_texts(invalid("Fly!", "fly", "**FLY**", "sing"), ACTIONS, 9)
    assert [(text.said, text.count) for text in texts] == [("fly", 3), ("sing", 1)]


def test_only_the_most_frequent_are_listed_and_only_invalid_ones():
    episodes = [*invalid("b", "b", "a"), episode(said(action="c"), said(status="translated", invalid="d"))]
    assert [text.said for text in invalid_texts(episodes, ACTIONS, 1)] == ["b"]
    assert {text.said for text in invalid_texts(episodes, ACTIONS, 9)} == {"a", "b"}


def test_the_nearest_action_comes_first_and_keeps_its_spelling():
    assert nearest_actions("moves west", ACTIONS)[0] == "Move West"
    assert nearest_actions("sleeep", ACTIONS) == ("Sleep",)
    assert nearest_actions("", ACTIONS) == nearest_actions("xyz", ACTIONS) == nearest_actions("fly", ()) == ()


@given(st.text(max_size=20))
def test_the_table_can_be_pasted_into_a_dict_whatever_was_said(text):
    lines = translation_table([InvalidText(text, 2, ("Do", "Sleep")), InvalidText("unlike all", 1, ())])
    assert ast.literal_eval(f"{{\n{lines}\n}}") == {text: "Do"}
