"""A slot: a place in which one episode after the other is played by its agent.

Whoever asks for a reply when the batch is full waits, and the next batch goes on from there; or what is under way goes
on. Either way the prompt whose reply is no turn yet is the one to bootstrap from.

So a prompt is *asking* until its reply is there; before it is sampled it may be *held*, while the batch is full. The
agent may have the reply *recorded* as a turn, or do without it. The turn is *sure* when the agent asks again or ends,
since only then is it known what follows it; and sure turns alone are *cut* off as the batch.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from numbers import Integral
from typing import Any, Literal

from pydantic import TypeAdapter

from turnwise.agents import Agents
from turnwise.agents.shared import Shared
from turnwise.config import Config
from turnwise.failures import EpisodeFailure, NeighbourFailure, first_of
from turnwise.figures import finite
from turnwise.protocols import Agent, Codec, Engine, Resumable, Setting
from turnwise.seeds import derive
from turnwise.session import KnownReply, SlotSession
from turnwise.share import Share
from turnwise.tally import Tally, Transcript
from turnwise.traces import Recording, Trace
from turnwise.traces.recording import now
from turnwise.types import End, Ending, Generation, Level, Outcome, Sample, Sampling, Segment, Turn, acted


@dataclass
class Episode:
    """Where a slot's episode stands, besides what its agent knows."""

    number: int = -1  # counts the episodes of the slot
    seed: int = 0
    begun: bool = False
    turns: int = 0  # those not counted that a memory asked for
    sampled: int = 0  # replies so far, those to a memory included
    episode_return: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)  # what its agent counts
    transcript: list[str] | None = None  # None: this episode is not kept
    recording: Recording | None = None  # None: this episode is not traced
    journal: list[KnownReply] = field(default_factory=list)


_EPISODE = TypeAdapter(Episode)
_LONGEST_PAUSE_S = 30.0


class Slot:
    """One agent and the episode that it plays."""

    def __init__(
        self,
        index: int,
        task: str,
        config: Config,
        codec: Codec,
        shared: Shared,
        levels: Callable[[int], Level],
        member: tuple[int, ...] = (),
        group: int = 0,
        written: Callable[[int], bool] = lambda _: False,
        traced: Callable[[int], bool] = lambda _: False,
        within: str = "",
    ):
        """`levels` gives the level of the slot's n-th episode; `written` tells whether that one leaves a transcript,
        and `traced` whether it leaves a trace.

        The slots of a `group` play the same levels with different random numbers: each is another `member` of it. Names
        of episodes begin with what they are played `within`.
        """
        self.index = index
        self.task = task
        self.config = config
        self.agents = Agents(Setting(config, task, codec, shared))
        self.episode = Episode()
        self.tally = Tally()
        self.share = Share()
        self._levels = levels
        self._member = member
        self._group = group
        self._written = written
        self._traced = traced
        self._within = within
        self._failures = 0  # since turns were last kept
        self._in_vain = 0  # failures since a turn was last played
        self._playing: asyncio.Task[None] | None = None
        self._held: list[asyncio.Future[None]] = []  # replies that wait for the next batch
        self._asking: list[tuple[int, ...]] = []  # prompts whose replies are not there yet
        self._asked_last: tuple[int, ...] = ()
        self._asked = 0  # replies that are being sampled
        self._news = asyncio.Event()  # the episode ended, waits, or got a reply
        self._engine: Engine | None = None
        self._full: Callable[[], bool] = lambda: True
        self._counted: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Of the episode under way."""
        return f"{self._within}{self.task}/{self.index}/{self.episode.number}"

    @property
    def sample(self) -> Sample | None:
        """What the episode under way is asked."""
        return self._levels(self.episode.number).sample

    @property
    def agent(self) -> Agent:
        """Who plays the episode under way."""
        return self.agents.of(self.sample if self.episode.begun else None)

    async def play(self, engine: Engine, turns: int) -> None:
        """Go on until the batch has so many turns of this slot."""
        await self.play_until(engine, lambda: self.share.acted >= turns)

    async def play_episodes(self, engine: Engine, episodes: int) -> None:
        """Go on until so many more episodes have ended."""
        enough = len(self.share.segments) + episodes
        await self.play_until(engine, lambda: len(self.share.segments) >= enough)

    async def play_on(self, engine: Engine, counted: Callable[[], None]) -> None:
        """Go on and on; `counted` is called when turns are sure. What is under way when this is cancelled stays so."""
        self._counted = counted
        await self.play_until(engine, lambda: False)

    async def play_until(self, engine: Engine, full: Callable[[], bool]) -> None:
        """Go on until the batch has no room for another turn of this slot, and no reply is under way."""
        self._engine, self._full = engine, full
        self._release()
        while not (full() and not self._asked and (self._playing is None or self._held)):
            if self._playing is None:
                self._playing = asyncio.create_task(self._play_one())
                self._playing.add_done_callback(self._stopped)
            await self._news.wait()
            self._news.clear()
            if self._playing.done():
                ended, self._playing = self._playing, None
                ended.result()
            if not full():  # any more: another slot's episode has failed
                self._release()

    def leave(self) -> None:
        """Let go of the engine, which may hold much of a GPU: nobody plays here any more."""
        self._engine, self._full, self._counted = None, lambda: True, lambda: None

    def _release(self) -> None:
        """Let those go on who wait for the batch to have room."""
        held, self._held = self._held, []
        for one in held:
            if not one.done():  # given up this very moment
                one.set_result(None)

    def _stopped(self, playing: asyncio.Task[None]) -> None:
        if not playing.cancelled():
            playing.exception()  # noted here: when another slot's mistake ends the run first, nobody else asks for it
        self._news.set()

    async def _play_one(self) -> None:
        """Play the episode under way, or a new one; a failure takes its turns with it."""
        try:
            if not self.episode.begun:
                self._begin()
            self._end(await self._run())
        except EpisodeFailure as failure:
            self._drop(failure)
        except ValueError as error:
            if self.sample is None or self.episode.sampled:
                raise
            raise ValueError(f"{self.sample.place}: {error}") from error  # it was the row that could not be begun
        self._held.clear()
        self._asking.clear()
        if self._in_vain > 2:
            await asyncio.sleep(min(_LONGEST_PAUSE_S, 2.0 ** min(self._in_vain - 5, 10)))  # what it lacks may come back

    async def _run(self) -> Ending:
        """The end to which the agent brings the episode."""
        try:
            running = self.agent.run(SlotSession(self, tuple(self.episode.journal)))
            if not isawaitable(running):
                raise ValueError(
                    f"agent: {type(self.agent).__name__}.run is no coroutine; write async def run(session)"
                )
            ending = await running
        except ExceptionGroup as errors:  # of an agent that asks several questions side by side
            raise first_of(errors) from None
        except asyncio.CancelledError as error:
            if self._playing is None or self._playing.cancelling():
                raise
            raise EpisodeFailure(f"the agent of {self.name} was cancelled by itself") from error
        if not _is_ending(ending):
            raise ValueError(
                f"agent: {type(self.agent).__name__} ends with {ending!r:.80}; let run return an Ending of token ids, "
                "True, False or None, and a finite number or None"
            )
        # Checkpoints and traces take no numbers of NumPy's.
        success = None if ending.success is None else bool(ending.success)
        return Ending(tuple(map(int, ending.final_prompt_ids)), success, finite(ending.progression))

    def _begin_again(self) -> None:
        """An agent that cannot say where it stands plays the episode anew, with the replies that it got."""
        old = self.episode
        kept = {"sampled": old.sampled, "journal": old.journal, "recording": old.recording}
        transcript = None if old.transcript is None else []
        self.episode = Episode(old.number, old.seed, old.begun, transcript=transcript, **kept)
        if old.recording:
            old.recording.take_back([reply.generation for reply in old.journal if not reply.trained])

    async def generate(self, prompt: tuple[int, ...]) -> Generation:
        """Sample a reply, as soon as the batch has room for it."""
        recording = self.episode.recording
        if recording:
            recording.pause()
        self._asking.append(prompt)
        self._asked_last = prompt
        self.share.settle()
        self._counted()
        try:
            while self._full():
                await self._room()
            start_s = now()
            generation = await self._sampled(prompt)
        finally:  # it may have been given up
            if prompt in self._asking:
                self._asking.remove(prompt)
        if recording:
            recording.sampled(prompt, generation, start_s)
        return generation

    async def _room(self) -> None:
        """Wait until the batch may have room."""
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(held)
        self._news.set()
        try:
            await held
        finally:
            if held in self._held:
                self._held.remove(held)

    async def _sampled(self, prompt: tuple[int, ...]) -> Generation:
        assert self._engine is not None
        self._asked += 1
        try:
            return await self._engine.generate(prompt, self._sampling(), self.name)
        finally:
            self._asked -= 1
            self._news.set()

    def record(self, turn: Turn) -> None:
        self._in_vain = 0
        self.share.turns.append(turn)
        if self.episode.recording:
            self.episode.recording.record(turn)

    def reward(self, amount: float, turn: int) -> None:
        """Add to what the n-th turn of the episode has earned."""
        number = turn - (self.episode.turns - acted(self.share.turns))
        if number < 0:
            raise EpisodeFailure(f"turn {turn} of {self.name} was in an earlier batch, and cannot be rewarded any more")
        self.share.reward(amount, number)
        if self.episode.recording:
            self.episode.recording.reward(amount, turn)

    def cut(self) -> list[Segment]:
        """End the batch: the open segment closes with the next prompt, whose reply it does not have.

        A turn that is not sure yet opens the next batch, or is lost with its episode.
        """
        if self.share.sure:
            trained = {id(turn.generation) for turn in self.share.sure}
            for answer in self.episode.journal:
                answer.trained |= id(answer.made) in trained
            # Where nothing waits, what was asked last has its reply, which is no turn yet, or was given up.
            waiting = [*(turn.prompt_ids for turn in self.share.unsure), *self._asking, self._asked_last]
            self._close("cut", waiting[0], None)
        return self.share.hand_out()

    def _begin(self) -> None:
        number = self.episode.number + 1  # a level that fails is not tried again
        self.episode = Episode(
            number,
            self._levels(number).seed,
            begun=True,
            transcript=[] if self._written(number) else None,
            recording=Recording() if self._traced(number) else None,
        )

    def _sampling(self) -> Sampling:
        rollout, episode = self.config.rollout, self.episode
        episode.sampled += 1
        seed = derive("sample", episode.seed, *self._member, episode.sampled)
        return Sampling(rollout.max_reply_tokens, rollout.temperature, rollout.top_p, rollout.top_k, seed)

    def _end(self, ending: Ending) -> None:
        episode = self.episode
        if not self.share.turns:
            raise EpisodeFailure(f"the agent of {self.task} ended an episode without a turn")
        end = "truncated" if ending.final_prompt_ids else "terminated"
        outcome = Outcome(ending.success, episode.episode_return, episode.turns, ending.progression, episode.figures)
        self.share.settle()
        self._close(end, ending.final_prompt_ids, outcome)
        self._counted()
        if episode.transcript is not None:
            won = {True: "success", False: "failure", None: "no verdict"}[ending.success]
            tail = f"== {end}: {won}, return {episode.episode_return:.2f}, {episode.turns} turns\n"
            text = "\n\n".join([*episode.transcript, tail])
            self.tally.transcripts.append(Transcript(self.index, episode.number, self.task, text))
        self._trace(end, outcome)
        self.episode = Episode(episode.number)

    def _trace(self, end: End | Literal["dropped"], outcome: Outcome | None, failure: str = "") -> None:
        """Hand on what was recorded of the episode, if it is traced."""
        episode, sample = self.episode, self.sample
        if episode.recording:
            index = sample.index if sample else None
            about = (self.index, self._group, episode.number, self.task, episode.seed, index, episode.recording)
            dropped = len(self.share.turns) if end == "dropped" else 0
            self.tally.traces.append(Trace(*about, end, outcome, failure, dropped))

    def _close(self, end: End, final_prompt: tuple[int, ...], outcome: Outcome | None) -> None:
        self._failures = 0
        episode, turns = self.episode, tuple(self.share.sure)
        about = (self.index, episode.number, self.task, episode.seed)
        self.share.close(Segment(*about, turns, end, final_prompt, outcome))

    def _drop(self, failure: EpisodeFailure) -> None:
        counts = not isinstance(failure, NeighbourFailure)
        self._failures += counts
        self._in_vain += counts
        if self._failures >= self.config.environment.max_failures:
            raise ValueError(
                f"{failure} ({self._failures} times in a row, and no turns to keep; see environment.max_failures)"
            ) from failure
        self.tally.failures += 1
        self.tally.last_failure = str(failure)
        self._trace("dropped", None, str(failure))
        self.tally.dropped_turns += self.share.drop()
        self.episode = Episode(self.episode.number)

    def state(self, waiting: Sequence[Segment] = ()) -> dict[str, Any]:
        """Where the slot stands, and what it has of the next batch: elastic ones begin before the last is handed out.

        That begins with the segments that are `waiting` in a batch which is full and was not handed out.

        An agent that gets its replies again records its turns again.
        """
        agent = self.agent
        resumable = isinstance(agent, Resumable)
        return {
            "episode": _EPISODE.dump_python(self.episode, mode="json"),
            "agent": agent.state() if resumable else None,
            "share": self.share.state(waiting, opened=resumable),
        }

    async def restore(self, state: dict[str, Any]) -> bool:
        """Bring the slot back to where it was; False if its episode cannot be, and a new one begins.

        What was already collected of such an episode keeps its bootstrap.
        """
        self.episode = _EPISODE.validate_python(state["episode"])
        if not isinstance(self.agent, Resumable):
            self._begin_again()
        back = not isinstance(self.agent, Resumable) or await self.agent.restore(state["agent"], self.episode.seed)
        self.share.restore(state["share"], opened=back)
        if not back:
            self.episode = Episode(self.episode.number)
        return back


def _is_ending(given: Any) -> bool:
    """Whether somebody's agent ends an episode as it is to."""
    if not isinstance(given, Ending) or isinstance(given.final_prompt_ids, str | None):
        return False
    ids = all(isinstance(token, Integral) and token >= 0 for token in given.final_prompt_ids)
    told = given.progression is None or finite(given.progression) is not None
    return ids and told and given.success in (True, False, None)
