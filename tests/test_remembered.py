"""What is remembered is what the function says, and no more than there is room for."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from turnwise.remembered import Remembered

TEXTS = st.lists(st.tuples(st.text("ab", max_size=6), st.sampled_from([(1,), (1, 2, 3)]), st.booleans()), max_size=40)


@given(TEXTS, st.integers(90, 330))
def test_the_newest_are_kept_as_far_as_there_is_room(calls, characters):
    asked = []
    remembered = Remembered(lambda *one: asked.append(one) or (one, len(asked)), characters)
    kept: list = []  # the oldest first
    for one in calls:
        known, before = one in kept, len(asked)
        assert remembered(*one)[0] == one
        assert len(asked) == before + (not known)
        kept = [*(other for other in kept if other != one), one]
        while sum(100 + len(text) + len(ids) for text, ids, _ in kept) > characters:
            kept.pop(0)


def test_threads_may_ask_at_the_same_time():
    together, results = threading.Barrier(4), []

    def slow(text: str) -> str:
        together.wait(20)
        return text.upper()

    remembered = Remembered(slow, 200)
    threads = [threading.Thread(target=lambda: results.append(remembered("abcd"))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == ["ABCD"] * 4
    assert remembered("abcd") == "ABCD"  # and is not asked again, for which four would have to wait


def test_what_many_keys_share_takes_no_room():
    asked = []
    remembered = Remembered(lambda *one: asked.append(one), 330, own=1)
    for _ in range(2):
        for text in ("a", "b", "c"):
            remembered(text, "x" * 1000)
    assert len(asked) == 3
