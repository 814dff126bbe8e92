"""Every sample once an epoch, by a function of seed and draw alone."""

from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.order import drawn

SEEDS = st.integers(0, 2**40)


@given(SEEDS, st.integers(1, 50), st.integers(0, 20))
def test_an_epoch_takes_every_sample_once(seed, size, epoch):
    draws = [drawn(seed, size, epoch * size + place) for place in range(size)]
    assert sorted(draws) == list(range(size))


@given(SEEDS, st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_a_draw_does_not_depend_on_those_before_it(seed, draws):
    whole = [drawn(seed, 13, draw) for draw in range(201)]
    assert [drawn(seed, 13, draw) for draw in draws] == [whole[draw] for draw in draws]


def test_seeds_and_epochs_have_orders_of_their_own():
    starts = [(seed, 20 * epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(drawn(seed, 20, start + place) for place in range(20)) for seed, start in starts}) == 25
