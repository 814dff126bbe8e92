"""How batches are filled: slots play side by side, each one episode after the other.

A batch takes the same number of turns from every slot, wherever their episodes stand. Or, where it is elastic, as many
in all, and more of them from slots that are fast: it ends with the last of them, and whatever is under way then, a
reply half sampled or an environment's step, goes on in the next batch. Or it takes the same number of whole episodes
from every slot, and ends with the longest of them.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from turnwise.agents.shared import Shared
from turnwise.batch_loop import BatchLoop
from turnwise.config import Config
from turnwise.data import Data, drawn, fingerprint
from turnwise.failures import first_of
from turnwise.groups import filter_groups
from turnwise.protocols import Codec, Engine, Pausable
from turnwise.seeds import derive, episode_seed
from turnwise.slot import Slot
from turnwise.tally import Tally
from turnwise.types import Level, Segment

_PATIENCE = 10  # batches in a row without a group that teaches


class NothingToCompare(ValueError):
    """Groups have taught nothing for long."""


class Collector:
    """Plays n_env slots, e_len turns or some whole episodes of each a batch."""

    def __init__(self, config: Config, codec: Codec):
        self.config = config
        self.tally = Tally()
        # One loop for all batches: episodes wait in it from one to the next.
        self._runner = asyncio.Runner(loop_factory=BatchLoop)
        self._batches: asyncio.Queue[list[Segment]] = asyncio.Queue()  # elastic batches; another may be full already
        self._shared = Shared(config, config.rollout.n_env)
        deal, size = config.deal, config.rollout.group
        self.slots: list[Slot] = []
        try:
            for index in range(config.rollout.n_env):
                group, member = divmod(index, size)
                task = deal[group % len(deal)]
                levels = partial(self._level, task, group)
                own = (member,) if size > 1 else ()
                kept: dict[str, Any] = {
                    "written": partial(self._written, index),
                    "traced": partial(self._traced, group),
                }
                slot = Slot(index, task, config, codec, self._shared, levels, own, group, **kept)
                self.slots.append(slot)
            for slot in self.slots:  # whose environments are being made meanwhile
                slot.agents.prepare()
            self.samples = fingerprint(self._shared.data.train) if config.data else ""  # tells them from others
            if config.data is not None:
                self.slots[0].agents.refuse_strangers((*self._shared.data.train, *self._shared.data.test))
        except BaseException:
            self.close()
            raise

    def _level(self, task: str, group: int, number: int) -> Level:
        """Of the n-th episode of a group; all groups together draw the samples of a data set without replacement."""
        seed = episode_seed("train", self.config.seed, task, group, number)
        if self.config.data is None:
            return Level(seed)
        samples = self._shared.data.train
        place = self._place(group, number)
        return Level(seed, samples[drawn(self.config.seed, len(samples), place)])

    def _written(self, index: int, number: int) -> bool:
        """Whether the n-th episode of a slot leaves a transcript."""
        every = self.config.log.transcript_every
        return bool(every) and _is_kept(index, number, every)

    def _traced(self, group: int, number: int) -> bool:
        """Whether the n-th episodes of a group are: all of them, so that they can be compared."""
        log = self.config.log
        return bool(log.traces) and _is_kept(group, number, log.trace_every)

    def _place(self, group: int, number: int) -> int:
        """Of the n-th level of a group among those of all groups."""
        return number * (self.config.rollout.n_env // self.config.rollout.group) + group

    def collect(self, engine: Engine) -> list[Segment]:
        """The segments of one batch, slot by slot in time order."""
        self.tally = Tally()
        for _ in range(_PATIENCE if self.config.rollout.filter_groups else 1):
            segments = self._runner.run(self._collect(engine))
            self.tally.played += segments
            if self.config.rollout.filter_groups:
                segments, useless = filter_groups(segments)
                self.tally.useless_groups += useless
            if segments:
                return segments
        raise NothingToCompare(
            f"in {_PATIENCE} batches no group had episodes of different returns, so there is nothing to compare "
            "(rollout.filter_groups); choose other tasks or rewards, larger groups, or a higher temperature"
        )

    async def _collect(self, engine: Engine) -> list[Segment]:
        for slot in self.slots:
            slot.tally = self.tally
        self._align()
        rollout, turns = self.config.rollout, self.config.rollout.e_len
        if rollout.episodes is not None:
            await play_all(slot.play_episodes(engine, rollout.episodes) for slot in self.slots)
        elif rollout.mode == "elastic":
            return await self._elastic(engine)
        else:
            lockstep = rollout.mode == "lockstep"
            # Otherwise too this may take more than one pass: an episode may fail while it waits for the other slots.
            while short := [slot for slot in self.slots if slot.share.acted < turns]:
                await play_all(slot.play(engine, slot.share.acted + 1 if lockstep else turns) for slot in short)
        return [segment for slot in self.slots for segment in slot.cut()]

    async def _elastic(self, engine: Engine) -> list[Segment]:
        """So many turns in all, whoever plays them."""
        if self._batches.empty():
            self._count(engine)  # a batch that waited when the run was killed is in the slots' shares
        if isinstance(engine, Pausable) and self._batches.empty():
            engine.resume()
        count = partial(self._count, engine)
        playing = asyncio.ensure_future(play_all(slot.play_on(engine, count) for slot in self.slots))
        batch = asyncio.ensure_future(self._batches.get())
        await asyncio.wait({playing, batch}, return_when=asyncio.FIRST_COMPLETED)
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing  # raises whatever mistake it ended by
        return await batch

    def is_full(self) -> bool:
        """Whether an elastic batch has all its turns."""
        rollout = self.config.rollout
        return sum(slot.share.acted for slot in self.slots) >= rollout.n_env * rollout.e_len

    def _count(self, engine: Engine) -> None:
        """If an elastic batch is full now, later turns are the next batch's."""
        if self.is_full():
            self._batches.put_nowait([segment for slot in self.slots for segment in slot.cut()])
            if isinstance(engine, Pausable):
                engine.pause()

    def _align(self) -> None:
        """Let the slots of a group go on together, where a failed episode has put one of them a level ahead."""
        size = self.config.rollout.group
        for first in range(0, len(self.slots) if size > 1 else 0, size):
            group = self.slots[first : first + size]
            newest = max(slot.episode.number for slot in group)
            for slot in group:
                slot.episode.number = newest

    @property
    def data(self) -> Data | None:
        """None where environments are played."""
        return self._shared.data if self.config.data else None

    def close(self) -> None:
        """Let go of the episodes under way and of the environments."""
        self._runner.close()
        self._shared.close()

    def state(self) -> list[dict[str, Any]]:
        """Where the slots stand; batches that wait are a part of what they have of the next one."""
        batches = [self._batches.get_nowait() for _ in range(self._batches.qsize())]
        for batch in batches:
            self._batches.put_nowait(batch)
        waiting = [segment for batch in batches for segment in batch]
        return [slot.state([segment for segment in waiting if segment.slot == slot.index]) for slot in self.slots]

    def restore(self, state: Sequence[dict[str, Any]]) -> int:
        """Returns how many slots could not be brought back and begin a new episode."""

        async def restore() -> int:
            done = await asyncio.gather(*(s.restore(one) for s, one in zip(self.slots, state, strict=True)))
            return done.count(False)

        return self._runner.run(restore())


def _is_kept(index: int, number: int, every: int) -> bool:
    """Whether the n-th episode of a slot is the first of all, or else one in so many, by chance.

    Were they counted, some slots, and with them whole tasks, would never be met where the numbers have a divisor in
    common.
    """
    return index == number == 0 or derive("kept", index, number) % every == 0


async def play_all(plays: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them together; the first error stops the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for play in plays:
                group.create_task(play)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
