from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, count

import pytest
import torch
from helpers import segment, turn
from hypothesis import given
from hypothesis import strategies as st

from turnwise.batch import Batch, pack
from turnwise.lines import Micro
from turnwise.types import Segment


def rows_of(batch: Batch) -> list[list[int]]:
    return [row.tolist() for row in batch.tokens.split(batch.row_lengths.tolist())]


# -- which prompts join


def test_a_prompt_that_extends_the_row_joins_it():
    batch = pack([segment(turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6]))])
    assert rows_of(batch) == [[1, 2, 3, 4, 5, 6]]
    assert batch.sampled.tolist() == [False, False, True, False, True, True]
    assert batch.sampled_per_row.tolist() == [3]


def test_a_prompt_that_adds_nothing_joins_too():
    batch = pack([segment(turn([1, 2], [3]), turn([1, 2, 3], [4]))])
    assert rows_of(batch) == [[1, 2, 3, 4]]
    assert batch.turn_firsts.tolist() == [True, True]


# A call and its answer: 99 ends a reply, 5 is the template's line break, 20 21 the answer, 30 opens the next reply.
FIRST = turn([1, 2, 3], [10, 11, 99])
SECOND = turn([1, 2, 3, 10, 11, 99, 5, 20, 21, 30], [12, 99])


def test_a_call_and_its_answer_are_one_row():
    batch = pack([segment(FIRST, SECOND)])
    assert rows_of(batch) == [[1, 2, 3, 10, 11, 99, 5, 20, 21, 30, 12, 99]]
    assert batch.sampled.int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert batch.step_ends.int().tolist() == [0, 0, 1, 0, 1]


def test_reasoning_that_the_template_leaves_out_opens_a_row():
    batch = pack([segment(FIRST, turn([1, 2, 3, 11, 99, 5, 20, 21, 30], [12, 99]))])
    assert rows_of(batch) == [[1, 2, 3, 10, 11, 99], [1, 2, 3, 11, 99, 5, 20, 21, 30, 12, 99]]
    assert batch.sampled.int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_the_end_of_a_reply_that_was_cut_is_shown_and_not_sampled():
    batch = pack([segment(turn([1, 2, 3], [10, 11], finish="length"), SECOND)])
    assert rows_of(batch) == [[1, 2, 3, 10, 11, 99, 5, 20, 21, 30, 12, 99]]
    assert batch.sampled.int().tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert batch.step_ends.int().tolist() == [0, 1, 0, 1]


def test_a_turn_that_was_never_sampled_ends_the_row():
    batch = pack([segment(FIRST, end="truncated", final=SECOND.prompt_ids)])
    assert rows_of(batch) == [list(SECOND.prompt_ids)]
    assert batch.sampled.int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert batch.final_rows.tolist() == [0]


def test_a_log_prob_is_missing_for_no_token():
    short = replace(FIRST, generation=replace(FIRST.generation, logprobs=(-0.1, -0.2)))
    with pytest.raises(ValueError, match="sampled 3 tokens and gave 2 log-probs"):
        pack([segment(short)])


@pytest.mark.parametrize("prompt", [[1, 9, 3, 4], [1, 2, 9, 4], [1, 2], [9]])
def test_any_other_prompt_opens_a_row(prompt):
    batch = pack([segment(turn([1, 2], [3]), turn(prompt, [5, 6]))])
    assert rows_of(batch) == [[1, 2, 3], [*prompt, 5, 6]]
    assert batch.sampled_per_row.tolist() == [1, 2]


def test_a_segment_never_joins_the_row_of_another():
    batch = pack([segment(turn([1], [2])), segment(turn([1, 2], [3]))])
    assert rows_of(batch) == [[1, 2], [1, 2, 3]]
    assert batch.sampled.tolist() == [False, True, False, False, True]


def test_a_prompt_compares_with_the_newest_row_alone():
    batch = pack([segment(turn([1], [2]), turn([8], [9]), turn([1, 2, 3], [4]))])
    assert rows_of(batch) == [[1, 2], [8, 9], [1, 2, 3, 4]]


@pytest.mark.parametrize("end", ["truncated", "cut"])
def test_a_final_prompt_joins_or_opens(end):
    joined = segment(turn([1], [2]), end=end, final=[1, 2, 3])
    opened = segment(turn([1], [2]), end=end, final=[4, 5])
    over = segment(turn([1], [2]))
    batch = pack([joined, over, opened])
    assert rows_of(batch) == [[1, 2, 3], [1, 2], [1, 2], [4, 5]]
    assert batch.final_rows.tolist() == [0, -1, 3]
    assert batch.trained_rows.tolist() == [0, 1, 2]
    assert batch.sampled.sum() == 3


def test_a_final_prompt_is_neither_sampled_nor_rewarded():
    batch = pack([segment(turn([1], [2], 1.0), end="cut", final=[1, 2, 3, 4])])
    assert batch.sampled.tolist() == [False, True, False, False]
    assert batch.rewards.tolist() == [1.0]


# -- what a token carries


def test_flags_of_a_hand_made_batch():
    """Two segments; the memory asks before the second turn of the first."""
    first = segment(
        turn([1], [2, 3], 0.5, action_tokens=1),
        turn([4], [5, 6, 7], of_memory=True),
        turn([8], [9, 10], -0.1, action_tokens=2),
    )
    second = segment(turn([11], [12], 1.0), end="cut", final=[13])
    batch = pack([first, second])
    yes, no = True, False
    assert batch.rewards.tolist() == pytest.approx([0, 0.5, 0, 0, 0, 0, -0.1, 1.0])
    assert batch.turn_firsts.tolist() == [yes, no, yes, no, no, yes, no, yes]
    assert batch.step_ends.tolist() == [no, yes, no, no, no, no, yes, yes]
    assert batch.segment_ends.tolist() == [no, no, no, no, no, no, yes, yes]
    assert batch.in_action.tolist() == [no, yes, no, no, no, yes, yes, no]
    assert batch.logprobs.tolist() == pytest.approx([-id / 100 for id in (2, 3, 5, 6, 7, 9, 10, 12)])


@dataclass(frozen=True)
class Exchange:
    """A turn before it is decided what its prompt shows."""

    shown: int  # new tokens
    sampled: int
    joins: bool  # the prompt extends what came before
    of_memory: bool
    action_tokens: int


@dataclass(frozen=True)
class Script:
    exchanges: list[Exchange]
    end: str
    final_joins: bool


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    sampled = draw(st.integers(1, 5))
    of_memory = draw(st.booleans())
    spelt = 0 if of_memory else draw(st.integers(0, sampled))
    return Exchange(draw(st.integers(0, 6)), sampled, draw(st.booleans()), of_memory, spelt)


scripts = st.builds(
    Script,
    st.lists(exchanges(), min_size=1, max_size=5),
    st.sampled_from(["terminated", "truncated", "cut"]),
    st.booleans(),
)
worlds = st.lists(scripts, min_size=1, max_size=5)


def act(world: list[Script], joins: bool | None = None):
    """The segments of a world. No id comes twice, except where a prompt repeats what was there before.

    `joins` overrules what the scripts say: True is a memory that only appends, False one that shows no history.
    """
    shown, sampled = count(1_000_001), count(1)
    segments = []
    for script in world:
        row: list[int] = []
        turns = []
        for number, exchange in enumerate(script.exchanges):
            extends = (exchange.joins if joins is None else joins) and row
            new = [next(shown) for _ in range(exchange.shown if extends else max(1, exchange.shown))]
            prompt = row + new if extends else new
            ids = [next(sampled) for _ in range(exchange.sampled)]
            turns.append(
                turn(prompt, ids, number / 8, of_memory=exchange.of_memory, action_tokens=exchange.action_tokens)
            )
            row = prompt + ids
        extends = script.final_joins if joins is None else joins
        final = [*row, next(shown)] if extends else [next(shown), next(shown)]
        segments.append(segment(*turns, end=script.end, final=final))
    return segments


@given(worlds)
def test_streams_do_not_depend_on_what_prompts_show(world):
    apart, joined = pack(act(world, joins=False)), pack(act(world, joins=True))
    for name in ("rewards", "logprobs", "turn_firsts", "step_ends", "segment_ends", "in_action"):
        assert torch.equal(getattr(apart, name), getattr(joined, name)), name
    assert len(joined.row_lengths) == len(world)
    turns, bootstraps = sum(len(s.exchanges) for s in world), sum(s.end != "terminated" for s in world)
    assert len(apart.row_lengths) == turns + bootstraps
    assert len(apart.trained_rows) == turns


@given(worlds)
def test_every_sampled_id_appears_once_in_time_order(world):
    segments = act(world)
    batch = pack(segments)
    ids = [id for one in segments for t in one.turns for id in t.generation.token_ids]
    assert batch.tokens[batch.sampled].tolist() == ids == list(range(1, len(ids) + 1))
    assert Counter(batch.tokens.tolist()).most_common(1)[0][1] == 1
    assert batch.sampled_per_row.sum() == len(ids) == len(batch.logprobs)


@given(worlds)
def test_every_prompt_stands_before_its_reply(world):
    segments = act(world)
    batch = pack(segments)
    rows = rows_of(batch)
    for one in segments:
        for t in one.turns:
            text = [*t.prompt_ids, *t.generation.token_ids]
            assert sum(row[: len(text)] == text for row in rows) == 1
    for one, row in zip(segments, batch.final_rows.tolist(), strict=True):
        assert (row == -1) == (one.end == "terminated")
        if row >= 0:
            assert rows[row] == list(one.final_prompt_ids)


# -- what a model reads


def lines_of(micro: Micro) -> list[list[int]]:
    """The rows of a line."""
    return [micro.line.tokens[path].tolist() for path in micro.line.paths.split(micro.line.lengths.tolist())]


@given(
    worlds,
    st.integers(1, 60),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.lists(st.lists(st.sampled_from([500, 501]), max_size=6), min_size=5, max_size=5),
)
def test_micros_read_every_chosen_row_once(world, max_tokens, finals, shuffler, beginnings):
    segments = act(world)
    batch = pack([begun(one, start) for one, start in zip(segments, beginnings, strict=False)])
    rows, ids = rows_of(batch), batch.tokens[batch.sampled]
    among = list(range(len(rows))) if finals else batch.trained_rows.tolist()
    chosen = shuffler.sample(among, shuffler.randint(1, len(among)))
    of_row = torch.repeat_interleave(torch.arange(len(rows)), batch.sampled_per_row)  # [N]
    read: list[int] = []
    bootstrapped: list[int] = []
    for micro in batch.micros(torch.tensor(chosen), max_tokens, finals):
        lines, line = lines_of(micro), micro.line
        assert len(line.tokens) <= max_tokens or len(lines) == 1
        assert list(map(len, lines)) == line.lengths.tolist()
        owners = [number for number, own in enumerate(line.own.tolist()) for _ in range(own)]
        columns = [
            c for row, own in zip(lines, line.own.tolist(), strict=True) for c in range(len(row) - own, len(row))
        ]
        assert line.positions.tolist() == columns
        read += micro.index.tolist()
        bootstrapped += micro.segments.tolist()
        assert torch.equal(micro.targets, ids[micro.index])
        asked: list[list[int]] = [[] for _ in lines]  # columns

        def seen_from(place: int, lines=lines, owners=owners, columns=columns, asked=asked) -> list[int]:
            """All that the model may see at a place."""
            asked[owners[place]].append(columns[place])
            return lines[owners[place]][: columns[place] + 1]

        for place, position in zip(micro.before.tolist(), micro.index.tolist(), strict=True):
            seen = seen_from(place)
            whole = rows[of_row[position]]
            assert seen == whole[: len(seen)]
            assert whole[len(seen)] == ids[position]
        for place, number in zip(micro.ends.tolist(), micro.segments.tolist(), strict=True):
            assert seen_from(place) == list(batch.segments[number].final_prompt_ids)
        for number, (row, places) in enumerate(zip(lines, asked, strict=True)):
            assert len(row) == 1 + max(places)  # nothing is read in vain
            alike = max((begun_alike(row, other) for other in lines[:number]), default=0)
            assert len(row) - line.own[number] == min(alike, *places)  # nor twice
    assert sorted(read) == [n for n, row in enumerate(of_row.tolist()) if row in chosen]
    expected = [e for e, row in enumerate(batch.final_rows.tolist()) if row in chosen]
    assert sorted(bootstrapped) == (expected if finals else [])


def begun_alike(row: list[int], other: list[int]) -> int:
    return sum(accumulate((a == b for a, b in zip(row, other, strict=False)), min))


def begun(one: Segment, start: list[int]) -> Segment:
    """The segment with some tokens in front of every prompt."""
    turns = tuple(replace(t, prompt_ids=(*start, *t.prompt_ids)) for t in one.turns)
    return replace(one, turns=turns, final_prompt_ids=(*start, *one.final_prompt_ids) if one.final_prompt_ids else ())


def test_a_row_longer_than_the_limit_goes_alone():
    lengths = [3, 50, 4, 3]
    segments = [segment(turn(range(100 * k, 100 * k + n), [100 * k + 99])) for k, n in enumerate(lengths, start=1)]
    micros = pack(segments).micros(torch.arange(4), max_tokens=8, finals=False)
    assert [m.line.lengths.tolist() for m in micros] == [[3], [50], [4, 3]]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 100), st.integers(2, 4))
def test_lanes_get_as_many_lines_of_as_like_a_size_as_can_be(lengths, most, lanes):
    batch = pack([segment(turn(range(100 * n, 100 * n + length), [99])) for n, length in enumerate(lengths)])
    rows = torch.arange(len(lengths))
    sizes = [[m.line.lengths.tolist() for m in batch.micros(rows, most, finals=False, lanes=n)] for n in (1, lanes)]
    alone, beside = ([sum(line) for line in lines] for lines in sizes)
    assert sorted(n for line in sizes[1] for n in line) == sorted(lengths)
    assert all(size <= most or len(line) == 1 for size, line in zip(beside, sizes[1], strict=True))
    assert len(alone) <= len(beside) <= -(-len(alone) // lanes) * lanes  # fewer where rows are too few, or too long
    assert max(beside) <= max(alone)


def test_two_lanes_share_a_batch_evenly():
    batch = pack([segment(turn(range(100 * n, 100 * n + 10), [99])) for n in range(20)])
    lines = [m.line.lengths.tolist() for m in batch.micros(torch.arange(20), 80, finals=False, lanes=2)]
    assert [len(line) for line in lines] == [5, 5, 5, 5]


def test_without_finals_nothing_after_the_last_reply_is_read():
    batch = pack([segment(turn([1, 2], [3, 4]), end="cut", final=[1, 2, 3, 4, 5, 6])])
    (short,) = batch.micros(torch.tensor([0]), 100, finals=False)
    assert lines_of(short) == [[1, 2, 3]]
    assert len(short.segments) == 0
    (full,) = batch.micros(torch.tensor([0]), 100, finals=True)
    assert lines_of(full) == [[1, 2, 3, 4, 5, 6]]
    assert (full.segments.tolist(), full.ends.tolist()) == ([0], [5])


def test_what_rows_begin_with_alike_is_read_once():
    """By those that begin alike, whatever they have in common with others, and in whatever order they come."""
    replies = [[1, 2, 3, 4], [1, 9], [1, 2, 3, 5], [1, 2, 6]]
    batch = pack([segment(turn(prompt, [7, 8])) for prompt in replies])
    (micro,) = batch.micros(torch.arange(4), 100, finals=False)
    assert micro.line.tokens.tolist() == [1, 2, 3, 4, 7, 5, 7, 6, 7, 9, 7]
    assert micro.line.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 2, 3, 1, 2]
    assert micro.line.paths.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 0, 1, 7, 8, 0, 9, 10]
    assert micro.before.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert [m.line.own.tolist() for m in batch.micros(torch.arange(4), 9, finals=False)] == [[5, 2], [4, 2]]


def test_the_first_place_that_is_asked_about_is_of_its_row_alone():
    """Rows that differ only in what was sampled are read apart from the last token of the prompt on."""
    prompt = list(range(20))
    batch = pack([segment(turn(prompt, [30, 31])), segment(turn(prompt, [30, 33]))])
    (micro,) = batch.micros(torch.arange(2), 100, finals=False)
    assert micro.line.tokens.tolist() == [*range(19), 19, 30, 19, 30]


def test_tokens_of_the_newest_weights_are_told_from_older_ones():
    old, mixed, new = turn([1], [5, 6]), turn([2], [5, 6, 7]), turn([3], [8])
    mixed = replace(mixed, generation=replace(mixed.generation, policy_version=4, versions=(3, 3, 4)))
    new = replace(new, generation=replace(new.generation, policy_version=4))
    batch = pack([segment(old, mixed), segment(new)])
    assert batch.newest.tolist() == [False, False, False, False, True, True]
    assert pack([segment(old, old)]).newest.all()
