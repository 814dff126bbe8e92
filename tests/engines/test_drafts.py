"""What is drafted is what followed before, as far as such drafts were accepted."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engines import drafts
from turnwise.engines.drafts import Draft, Drafts, worth

TEXTS = st.text("abc", max_size=12)


def tokens(drafted: list[Draft]) -> str:
    return "".join(chr(draft.token) for draft in drafted)


def brute_force(text: str, said: list[str]) -> str:
    """What last followed the longest ending, of four tokens at most: in the text, or else in what others said."""
    for length in range(min(4, len(text)), 0, -1):
        for source in (text, *reversed(said)):
            for place in range(len(source) - 1, length - 1, -1):
                if source[place - length : place] == text[-length:]:
                    return source[place]
    return ""


@given(TEXTS.filter(bool), st.lists(TEXTS, max_size=3), st.integers(-1, 12))
def test_what_followed_the_longest_ending_is_drafted_and_what_follows_that(text, said, room):
    known = Drafts(frozenset())
    for each in said:
        known.learn(each, len(each))
    expected = text
    while len(expected) - len(text) < min(room, drafts._AHEAD) and (token := brute_force(expected, said)):
        expected += token
    assert tokens(known.propose(text, room, 0.0)) == expected[len(text) :]


def test_only_what_was_sampled_is_learned():
    known = Drafts(frozenset())
    known.learn("abcd", 2)
    assert tokens(known.propose("b", 1, 0.0)) == "c" and tokens(known.propose("c", 1, 0.0)) == "d"
    assert not known.propose("a", 1, 0.0)


def test_drafts_end_before_what_ends_a_text():
    known = Drafts(frozenset([ord("c")]))
    assert tokens(known.propose("abcab", 5, 0.0)) == "" and tokens(known.propose("abca", 5, 0.0)) == "b"


def test_drafts_go_as_far_as_those_of_their_kind_came_true():
    """One more in every pass, where of those so far ahead nothing is known: every second one is expected to."""
    known, text = Drafts(frozenset()), "abcdefgh" * 2
    for ahead in range(3):
        drafted = known.propose(text, 8, 0.45)
        assert [draft.ahead for draft in drafted] == list(range(ahead + 1))
        for _ in range(30):
            known.verified(drafted, len(drafted))
    known.verified(known.propose(text, 8, 0.0), 1)  # the second one was wrong, and the others behind it say nothing
    shares = (1 + 91) / (2 + 91), (1 + 60) / (2 + 61), (1 + 30) / (2 + 30), 1 / 2
    for count, probability in enumerate(accumulate(shares, mul), 1):
        assert len(known.propose(text, 4, probability + 1e-9)) == count - 1
        assert len(known.propose(text, 4, probability - 1e-9)) == count


def test_kinds_are_judged_apart():
    known = Drafts(frozenset())
    known.learn("wxyz", 4)
    known.verified(known.propose("abcdabcd", 8, 0.0), 8)
    own, others = known.propose("abcdabcd", 8, 0.55), known.propose("wxy", 8, 0.55)
    assert own and not others and known.propose("wxy", 8, 0.45)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(drafts, "_KEPT", 40)
    known = Drafts(frozenset())
    for n in range(100):
        known.learn(chr(300 + n) * 3, 3)
        assert len(known._next) <= 40 + 3 * len(drafts._ENDINGS)
    assert known.propose(chr(399), 1, 0.0)


@pytest.mark.parametrize("requests", [1, 8, 32, 128])
def test_among_more_requests_a_draft_must_be_likelier(requests):
    assert 0 < worth(requests) < worth(requests + 1) < 0.5
