"""Verdicts turn at their thresholds, name their figures, and put first what must be mended first."""

from dataclasses import replace

import pytest
from helpers import play_config
from makers import episode, probe_of, said

from turnwise.probe.measure import Lengths, sheet
from turnwise.probe.play import ALL, MemoryFigures
from turnwise.probe.verdicts import Verdict, percent, verdicts

SAID = "the number is {} so it must be {} before the end of all"


def thinking(number: int, **changes):
    """Turns whose thoughts share little."""
    return said(" ".join(f"w{(7 * number + k) % 997}" for k in range(7)), seen=f"room {number}", **changes)


def played(successes: int, of: int = 20, task: str = "goto", invalid: int = 0) -> list:
    """Episodes of five turns, the first `invalid` turns of each not understood."""
    return [
        episode(
            *(
                thinking(5 * number + k, **({"status": "invalid", "invalid": "ad"} if k < invalid else {}))
                for k in range(5)
            ),
            task=task,
            success=number < successes,
            end="terminated" if number < successes else "truncated",
        )
        for number in range(of)
    ]


def about(words: str, probe) -> Verdict:
    (found,) = [verdict for verdict in verdicts(probe) if words in verdict.finding]
    return found


def test_what_is_well_is_said_to_be_well():
    found = verdicts(probe_of(played(20), luck=0.1))
    assert {verdict.mark for verdict in found} == {"good"}
    assert len(found) == 4


def test_what_must_be_mended_comes_first():
    marks = [verdict.mark for verdict in verdicts(probe_of(played(1, invalid=3), luck=0.5))]
    assert marks == sorted(marks, key=("mend", "look", "good").index)
    assert {"mend", "look", "good"} == set(marks)


@pytest.mark.parametrize(("invalid", "mark"), [(0, "good"), (1, "mend"), (5, "mend")])
def test_actions_that_are_not_understood(invalid, mark):
    verdict = about("Understood actions", probe_of(played(20, invalid=invalid)))
    assert verdict.mark == mark
    assert percent(1 - invalid / 5) in verdict.finding


def test_translations_are_suggested_with_what_they_would_bring():
    assert "it would be 100%" in about("Understood actions", probe_of(played(20, invalid=2))).advice
    silent = [episode(said(status="invalid", invalid="?"), said())]
    assert "100% of the invalid replies have no action line" in about("Understood", probe_of(silent)).advice


def test_one_poor_task_among_many_is_named():
    probe = probe_of([*played(20, of=30), *played(5, of=5, task="open", invalid=1)])
    assert about("below 95%", probe).finding == "Understood actions are below 95% in open 80%."
    assert about("Understood actions:", probe).mark == "good"


@pytest.mark.parametrize(
    ("successes", "luck", "mark", "words"),
    [
        (15, 0.2, "good", "above random play: 75%"),
        (6, 0.2, "mend", "not above random play: 30%"),
        (2, 0.8, "mend", "below random play: 10%"),
    ],
)
def test_success_beside_random_play(successes, luck, mark, words):
    verdict = about("random play", probe_of(played(successes), luck))
    assert verdict.mark == mark
    assert words in verdict.finding


def test_tasks_without_any_success_are_named():
    probe = probe_of([*played(10), *played(0, task="open")])
    assert about("No success", probe).mark == "look"
    assert "20 episodes of open" in about("No success", probe).finding
    assert about("No success", probe_of(played(0))).mark == "mend"


@pytest.mark.parametrize(("luck", "mark"), [(-1.0, "look"), (1.0, "mend")])
def test_where_success_is_not_told_returns_are_compared(luck, mark):
    probe = probe_of([replace(one, outcome=replace(one.outcome, success=None)) for one in played(0)], luck)
    assert about("tells of no success", probe).mark == mark


def test_random_play_that_never_came_to_where_success_is_told_is_not_compared():
    probe = probe_of(played(3))
    rivals = {"random": tuple(replace(one, successes=None) for one in probe.rivals["random"])}
    assert not [one for one in verdicts(replace(probe, rivals=rivals)) if "random play" in one.finding]


def test_reasoning_that_is_cut_short_or_of_one_form():
    cut = probe_of([episode(*(thinking(k, finish="length" if k < 2 else "stop") for k in range(20)))])
    assert about("cut at 12 tokens: 10%", cut).mark == "mend"
    assert about("7 tokens in the median", probe_of([episode(thinking(1, tokens=7))])).mark == "mend"
    form = probe_of([episode(*(said(SAID.format(k % 2, k % 3), seen=str(k)) for k in range(40)))])
    assert about("distinct-2", form).mark == "look"
    same = probe_of([episode(*(said(SAID, seen=str(k)) for k in range(9)))])
    assert "share 100% of their word pairs, and 100% are the same" in about("Consecutive", same).finding


def test_prompts_and_their_limit():
    config = play_config(rollout={"max_prompt_tokens": 40})
    assert about("30 of 40 tokens", probe_of(played(20), config=config)).mark == "good"
    assert about("25% of the turns lost", probe_of(played(20), config=config, shortened=0.25)).mark == "look"


def test_a_kind_of_failure_that_is_most_of_them():
    assert about("15 of 15 failures", probe_of(played(5))).finding.endswith("of one kind: out of time.")


def sweep(successes: dict[int, int], shortened: float = 0.0) -> tuple[MemoryFigures, ...]:
    sizes = Lengths(30.0, 35.0, 40)
    return tuple(MemoryFigures(n, sizes, shortened, (sheet(ALL, played(won)),)) for n, won in successes.items())


def test_memories_are_compared_where_they_were_played():
    assert "memory.turns=2" in about("Memory matters", probe_of(played(10), memories=sweep({1: 3, 2: 19}))).advice
    assert about("No memory is surely better", probe_of(played(10), memories=sweep({1: 9, 2: 11})))
    chance = {1: 5, 2: 13}  # of 20: two that differ this much do so surely, but not the two that differ most of six
    assert about("Memory matters", probe_of(played(10), memories=sweep(chance)))
    six = sweep({**chance, 4: 9, 8: 9, 16: 9, 32: 9})
    assert about("No memory is surely better", probe_of(played(10), memories=six))
    assert about("2 (10% of the turns)", probe_of(played(10), memories=sweep({1: 9, 2: 11}, 0.1))).mark == "look"
    assert not [one for one in verdicts(probe_of(played(10))) if "emory" in one.finding]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.314, "31%"),
        (0.004, "0.4%"),
        (0.996, "99.6%"),
        (1e-5, "below 0.1%"),
        (1 - 1e-5, "above 99.9%"),
    ],
)
def test_a_share_is_never_rounded_to_none_or_all(share, text):
    assert percent(share) == text
