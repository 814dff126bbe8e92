import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.parse import ThinkAct

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "wait")
PARSER = ThinkAct(ACTIONS, "wait")


@pytest.mark.parametrize(
    "text",
    [
        "THINK: the door is left\nACTION: turn left",
        "ACTION: turn left",
        "Action: turn left",
        "action: turn left",
        "aCtIoN : turn left",
        "ACTION:turn left",
        "Think: hm. ACTION: turn left",
        # the last marker wins
        "ACTION: turn right\nACTION: turn left",
        "ACTION: turn right. No: action: turn left",
        "ACTION:**ACTION:** turn left",
        # the first non-empty line after it
        "ACTION:\nturn left",
        "ACTION:\n\n  \t\n   turn left   \n",
        "ACTION: turn left\nThat opens the door.",
        "ACTION: ...\nturn left",
        # quotes, markup, brackets, end punctuation, underscores, case, spaces
        'ACTION: "turn left"',
        "ACTION: 'turn left'",
        "ACTION: `turn left`",
        "ACTION: **turn left**",
        "ACTION: *turn left*",
        "ACTION: __turn left__",
        "ACTION: [turn left]",
        "ACTION: <turn left>",
        "ACTION: (turn left)",
        "ACTION: {turn left}",
        'ACTION: **"turn left".**',
        "ACTION: turn left.",
        "ACTION: turn left!",
        "ACTION: turn left;",
        "ACTION: turn_left",
        "ACTION: Turn Left",
        "ACTION: TURN_LEFT",
        "ACTION: turn   left",
        "ACTION: turn\tleft",
        "**ACTION:** turn left",
        "ACTION: turn left\r\n",
    ],
)
def test_a_legal_action_is_read_however_it_is_dressed(text):
    action = PARSER.parse(text)
    assert (action.text, action.status) == ("turn left", "valid")


@pytest.mark.parametrize(
    "marker", ["**ACTION**:", "*Action* :", "`ACTION`:", "__ACTION__:", "_Action:_", "_**ACTION:**_"]
)
def test_the_marker_itself_may_be_marked_up(marker):
    action = PARSER.parse(f"THINK: a wall\n{marker} turn left")
    assert (action.status, action.thought) == ("valid", "a wall")


def test_markup_around_markers_belongs_to_neither_thought_nor_action():
    action = PARSER.parse("**THINK:** a wall\n**ACTION:** jump")
    assert (action.thought, action.said) == ("a wall", "jump")


@pytest.mark.parametrize("text", ["ACTION: “turn left”", "ACTION: ‘turn left’", "ACTION: «turn left»"])  # noqa: RUF001
def test_typographic_quotes_are_quotes(text):
    assert PARSER.parse(text).status == "valid"


@pytest.mark.parametrize("said", ["move forward", "Move_Forward.", "**PICKUP**"])
def test_a_near_miss_is_left_to_the_environment(said):
    found = PARSER.parse(f"THINK: on\nACTION: {said}")
    assert (found.text, found.status, found.said) == (PARSER.default, "invalid", said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ACTION: jump", "jump"),
        ("ACTION: turn", "turn"),
        ("ACTION: turn left or turn right", "turn left or turn right"),
        ("ACTION: do not turn left", "do not turn left"),
        ("ACTION: turn left\nACTION: jump", "jump"),  # an earlier marker does not count
        ("ACTION: jump\nturn left", "jump"),  # nor does a later line
        ("", ""),
        ("turn left", ""),  # no marker
        ("THINK: turn left", ""),
        ("my reaction: turn left", ""),  # not the marker
        ("my_action: turn left", ""),
        ("the action is turn left", ""),
        ("ACTION:", ""),
        ("ACTION: \n \n", ""),
        ("ACTION: **.**", ""),
    ],
)
def test_anything_else_becomes_the_default(text, said):
    action = PARSER.parse(text)
    assert (action.text, action.status, action.said) == ("wait", "invalid", said)


def test_actions_are_matched_as_loosely_as_they_are_listed():
    parser = ThinkAct(["Move_North", "[stay]"], "[stay]")
    assert parser.parse("ACTION: move north").text == "Move_North"
    assert parser.parse("ACTION: STAY.").status == "valid"


@pytest.mark.parametrize("run", ["*", "_", "`_", " *", "action ", "action *"])
def test_a_reply_that_runs_on_and_on_is_read_at_once(run):
    began = time.perf_counter()
    assert PARSER.parse(run * 50_000).status == "invalid"
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (["<", "up"], "the action '<' is nothing to the answer format"),  # else a reply without any action would be it
        (["look", "Look!"], "the action 'Look!' reads like 'look' to the answer format"),
    ],
)
def test_actions_that_cannot_be_told_apart_are_refused(actions, message):
    with pytest.raises(ValueError, match=message):
        ThinkAct(actions, "up")


@pytest.mark.parametrize(
    ("text", "thought", "tail"),
    [
        ("THINK: a wall.\nACTION: wait", "a wall.", "ACTION: wait"),
        ("  think : a\nwall\n\nAction: wait", "a\nwall", "Action: wait"),
        ("a wall. ACTION: wait", "a wall.", "ACTION: wait"),
        ("ACTION: wait", "", "ACTION: wait"),
        ("THINK: I THINK: so\nACTION: wait", "I THINK: so", "ACTION: wait"),
        ("THINK: not ACTION: jump\nACTION: wait", "not ACTION: jump", "ACTION: wait"),
        ("THINK: a wall", "a wall", ""),  # no marker: all of it is reasoning
        ("", "", ""),
    ],
)
def test_the_thought_is_what_stands_before_the_action(text, thought, tail):
    action = PARSER.parse(text)
    assert action.thought == thought
    assert text[action.start :] == tail


def test_without_a_list_any_text_is_an_action():
    parser = ThinkAct(default="look")
    action = parser.parse('THINK: hm\nACTION: Say "Hello_World".\n')
    assert (action.text, action.status, action.thought) == ('Say "Hello_World".', "valid", "hm")
    assert parser.parse("ACTION: look around").status == "valid"
    assert (parser.parse("no marker").text, parser.parse("no marker").status) == ("look", "invalid")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("ACTION:\n1 2 3\n4 5 6\n", "1 2 3\n4 5 6"),
        ('THINK: so\nACTION: {\n  "x": [1]\n}', '{\n  "x": [1]\n}'),
        ("ACTION:\n```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        ("ACTION: ) ] }", ") ] }"),
        ("**ACTION: 42**", "42"),
        ("**ACTION:** 42", "42"),
        ("**ACTION:** 4**2**", "4**2**"),
        ("_ACTION: go_", "go"),
    ],
)
def test_without_a_list_all_that_follows_is_the_action(reply, action):
    parsed = ThinkAct().parse(reply)
    assert (parsed.text, parsed.status) == (action, "valid")


markers = st.sampled_from(["ACTION:", "action :", "THINK:", "\n", "turn left", "move forward", "**", "_"])
replies = st.one_of(st.text(), st.lists(st.one_of(markers, st.text(max_size=5)), max_size=10).map("".join))


@given(replies)
def test_any_text_yields_a_legal_action(text):
    action = PARSER.parse(text)
    assert action.text in ACTIONS
    assert action.status != "invalid" or action.text == "wait"
    assert 0 <= action.start <= len(text)
    assert action.thought in text[: action.start]
    assert action.said in text[action.start :]
    assert "\n" not in action.said


@given(replies)
def test_any_text_is_understood_without_a_list_too(text):
    action = ThinkAct(default="look").parse(text)
    assert action.text
    assert (action.status == "invalid") == (not action.said)


@given(st.text(), st.sampled_from(ACTIONS))
def test_what_is_formatted_is_parsed_back(thought, action):
    found = PARSER.parse(PARSER.format(thought, action))
    assert (found.text, found.status, found.said) == (action, "valid", action)
    assert found.thought == thought.strip()


@given(replies)
def test_an_invalid_turn_rewritten_for_the_memory_is_a_valid_one(text):
    action = PARSER.parse(text)
    shown = PARSER.parse(PARSER.format(action.thought, action.text))
    assert (shown.text, shown.status) == (action.text, "valid")


def test_an_empty_thought_leaves_the_reasoning_out():
    assert PARSER.format("", "wait") == "ACTION: wait"
    assert PARSER.format("a wall", "wait") == "THINK: a wall\nACTION: wait"
