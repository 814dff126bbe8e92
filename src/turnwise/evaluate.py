"""Plays fixed held-out levels: the same ones for every run, model and player, of seeds that never occur in training.

Where a task has few worlds, another seed may draw the same one; a split of its own, as BabaIsAI has, rules that out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count, islice

from turnwise.agents.shared import Shared
from turnwise.batch_loop import refuse_inside_a_loop
from turnwise.collector import play_all
from turnwise.config import Config
from turnwise.data import Data
from turnwise.episodes import Record
from turnwise.players import Model, Player
from turnwise.protocols import Codec, Engine
from turnwise.seeds import episode_seed
from turnwise.slot import Slot
from turnwise.tally import Tally
from turnwise.types import Level, Sample


class _UsedUp(Exception):
    """A course has no test row left, since some of its own have failed."""


@dataclass(frozen=True)
class Course:
    """A share of a task's levels, met one after another: every `stride`-th from `index` on, until enough are played."""

    index: int
    task: str
    stride: int
    settled: frozenset[int]  # levels that are played, or were passed over
    quota: int  # episodes to play; a level whose environment fails is passed over
    samples: Sequence[Sample]  # held out; none where an environment makes the levels
    written_every: int  # one level in so many leaves a transcript

    def number(self, episode: int) -> int:
        """Of the level that the n-th episode of this course plays."""
        yet_to_come = (level for level in count(self.index, self.stride) if level not in self.settled)
        return next(islice(yet_to_come, episode, None))

    def level(self, episode: int) -> Level:
        """What it is about. Test rows are played once each."""
        number = self.number(episode)
        if self.samples and number >= len(self.samples):
            raise _UsedUp
        return Level(eval_seed(self.task, number), self.samples[number] if self.samples else None)

    def written(self, episode: int) -> bool:
        """Whether it leaves a transcript."""
        return self.number(episode) % self.written_every == 0


def eval_seed(task: str, episode: int) -> int:
    """Of a held-out level."""
    return episode_seed("eval", task, episode)


def evaluate(
    config: Config,
    player: Player,
    finished: Callable[[Record, str], object] = lambda *_: None,
    known: Sequence[Record] = (),
    data: Data | None = None,
) -> list[Record]:
    """Play `evaluation.episodes` held-out episodes of each task, less those already `known`.

    Of data there are fewer where rows fail and none is left to play instead.

    `data` are the samples, if somebody has them already. `finished` hears of each new episode as it ends, and of some
    of a model's (`log.transcript_every`) what was said. All are returned, known ones too, in order of task and level.
    """
    records = list(known)

    def finish(course: Course, slot: Slot) -> None:
        text = "".join(one.text for one in slot.tally.transcripts)
        record = _record(course, slot, player.speaks)
        records.append(record)
        finished(record, text)

    slots = _play(config, player, known, finish, data)
    if not records:
        raise ValueError(f"no test row could be played ({slots[0].tally.last_failure})")
    tasks = config.tasks
    return sorted(records, key=lambda record: (tasks.index(record.task), record.number))


def play_held_out(
    config: Config, engine: Engine, codec: Codec, finished: Callable[[], object] = lambda: None
) -> list[Slot]:
    """The same by a model, told turn by turn: each slot's `share.segments` are whole episodes."""
    return _play(config, Model(engine, codec), (), lambda *_: finished())


def _play(
    config: Config,
    player: Player,
    known: Sequence[Record],
    finished: Callable[[Course, Slot], object],
    data: Data | None = None,
) -> list[Slot]:
    refuse_inside_a_loop()
    config = player.rules(config)
    free = asyncio.Semaphore(config.evaluation.slots)

    async def play(course: Course, slot: Slot, engine: Engine) -> None:
        async with free:
            with suppress(_UsedUp):
                for _ in range(course.quota):
                    await slot.play_episodes(engine, 1)
                    finished(course, slot)

    with closing(Shared(config, config.evaluation.slots, data)) as shared:
        samples = _held_out(config, shared)
        courses = [course for course in _courses(config, known, samples) if course.quota]
        seats = [player.sit(config, course, shared) for course in courses]
        for slot, _ in seats[:1]:
            slot.agents.refuse_strangers(samples)
        slots = [slot for slot, _ in seats]
        for slot in slots:
            slot.agents.prepare()
        try:
            asyncio.run(play_all(play(course, *seat) for course, seat in zip(courses, seats, strict=True)))
        finally:
            for slot in slots:
                slot.leave()
    return slots


def _held_out(config: Config, shared: Shared) -> Sequence[Sample]:
    if config.data is None:
        return ()
    samples, episodes = shared.data.test, config.evaluation.episodes
    if len(samples) < episodes:
        raise ValueError(
            f"evaluation.episodes is {episodes}, but there are only {len(samples)} test samples; "
            f"set evaluation.episodes={len(samples)}"
        )
    return samples


def _courses(config: Config, known: Sequence[Record], samples: Sequence[Sample]) -> list[Course]:
    """Where each course stands. A level that is missing among the known ones, by whatever mishap, is played again."""
    tasks, episodes = config.tasks, config.evaluation.episodes
    stride = max(1, min(config.evaluation.slots // len(tasks), episodes))
    courses = []
    for task in tasks:
        for index in range(stride):
            own = [one for one in known if one.task == task and one.number % stride == index]
            settled = frozenset(one.number - back * stride for one in own for back in range(one.failures + 1))
            quota = len(range(index, episodes, stride)) - len(own)
            courses.append(Course(index, task, stride, settled, quota, samples, config.log.transcript_every))
    return courses


def _record(course: Course, slot: Slot, speaks: bool) -> Record:
    """Of the newest episode, whose turns are let go."""
    segment, failures = slot.share.segments.pop(), slot.tally.failures
    slot.tally = Tally()
    outcome = segment.outcome
    assert outcome is not None
    actions = [turn.action for turn in segment.turns if turn.action]
    said = [action.said for action in actions if action.status == "invalid"]
    sample = course.level(segment.episode).sample
    return Record(
        task=course.task,
        number=course.number(segment.episode),
        seed=segment.seed,
        success=outcome.success,
        progression=outcome.progression,
        episode_return=outcome.episode_return,
        turns=outcome.turns,
        valid=len(actions) - len(said) if speaks else None,
        invalid_texts=dict(Counter(said)),
        failures=failures,
        figures=dict(outcome.figures),
        source=sample.data_source if sample else "",
    )
