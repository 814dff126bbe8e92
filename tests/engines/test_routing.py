"""Requests stay with their server while it is up; the rest is shared out by what there is to do."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.engines.routing import Router

NAMES = [f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003)]
IDS = [f"task/{slot}/0" for slot in range(60)]


def test_an_episode_stays_where_it_is_however_busy_that_server_gets():
    router = Router(NAMES, 3)
    homes = {id: router.choose(id) for id in IDS}
    with ExitStack() as stack:
        for number, id in enumerate(IDS * 2):
            home = router.choose(id)
            assert home == homes[id] and home is not None
            stack.enter_context(router.busy(home, 1000 * (number % 7)))
    assert set(homes.values()) == set(NAMES)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_a_new_request_goes_where_the_fewest_tokens_are_outstanding(loads):
    router, outstanding = Router(NAMES, 3), Counter(dict.fromkeys(NAMES, 0))
    with ExitStack() as stack:
        for number, tokens in enumerate(loads):
            chosen = router.choose(f"{number}")
            assert chosen is not None and outstanding[chosen] == min(outstanding.values())
            outstanding[chosen] += tokens
            stack.enter_context(router.busy(chosen, tokens))
    assert router.choose("another") == Router(NAMES, 3).choose("another")  # all is given back


def test_ties_do_not_all_fall_to_one_server_and_fall_alike_in_every_process():
    chosen = [str(Router(NAMES, 3).choose(id)) for id in IDS]
    assert min(Counter(chosen).values()) > 10 and len(set(chosen)) == 3
    code = "from turnwise.engines.routing import Router\n"
    code += f"print([Router({NAMES!r}, 3).choose(id) for id in {IDS!r}])"
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": salt}
        )
        assert done.stdout.strip() == str(chosen), done.stderr


def test_a_server_is_taken_out_after_failures_in_a_row_and_only_its_requests_move():
    router = Router(NAMES, 3)
    homes = {id: router.choose(id) for id in IDS}
    (bad, *_) = NAMES
    assert not router.failed(bad, gone=False) and not router.failed(bad, gone=False)
    router.succeeded(bad)
    assert [router.failed(bad, gone=False) for _ in range(4)] == [False, False, True, False]
    moved = {id: router.choose(id) for id in IDS}
    assert {id for id in IDS if moved[id] != homes[id]} == {id for id in IDS if homes[id] == bad}
    assert bad not in moved.values()
    assert router.counters[bad].moved == list(homes.values()).count(bad) > 0
    router.restore(bad)
    assert {id: router.choose(id) for id in IDS} == moved
    assert bad in router.up


def test_one_that_is_gone_is_out_at_once_and_without_any_there_is_none_to_choose():
    router = Router(NAMES, 3)
    assert all(router.failed(name, gone=True) for name in NAMES)
    assert router.choose("a") is None and router.choose("") is None
    router.restore(NAMES[1])
    assert router.choose("a") == NAMES[1]


def test_what_failed_is_tried_elsewhere_where_there_is_an_elsewhere():
    router = Router(NAMES[:2], 3)
    home = router.choose("a")
    assert home is not None
    other = router.choose("a", avoid=home)
    assert {home, other} == set(NAMES[:2]) and router.choose("a") == other
    assert Router(NAMES[:1], 3).choose("a", avoid=NAMES[0]) == NAMES[0]


def test_old_homes_are_forgotten_and_requests_without_an_id_have_none():
    router = Router(NAMES, 3)
    first = router.choose("first")
    assert first is not None
    for number in range(10_000):
        router.choose(f"{number}")
        router.choose("")
    with router.busy(first, 5):
        assert router.choose("first") != first
