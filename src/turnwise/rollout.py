"""How episodes are played: observation, memory, prompt, generation, action, feedback, turn.

Each slot is one environment that lives across batches. A batch takes the same number of turns from every slot,
wherever their episodes stand, and the next batch goes on from there.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from turnwise.config import Config
from turnwise.envs.failures import EnvironmentFailure, NeighbourFailure
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
from turnwise.protocols import ActionParser, Ask, Codec, Engine, Memory
from turnwise.seeds import derive, episode_seed
from turnwise.types import Action, End, Feedback, Message, Observation, Outcome, Sampling, Segment, Turn


class _Asked(Exception):
    """A memory asked the model while only the next prompt was wanted."""

    def __init__(self, messages: list[Message]):
        self.messages = messages


@dataclass
class Episode:
    """Where a slot's episode stands: all that must survive a batch, or a crash."""

    number: int = -1  # counts the episodes of the slot
    seed: int = 0
    observation: Observation | None = None  # None: not begun
    past: list[Turn] = field(default_factory=list)  # what the memory may read
    actions: list[str] = field(default_factory=list)  # all that were played: they bring the environment back
    sampled: int = 0  # replies so far, those to the memory included
    episode_return: float = 0.0
    transcript: list[str] | None = None  # None: this episode is not kept

    @property
    def turns(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Transcript:
    """A whole episode as readable text."""

    slot: int
    episode: int
    task: str
    text: str


@dataclass
class Tally:
    """What happened besides turns while a batch was collected."""

    failures: int = 0  # of environments
    dropped_turns: int = 0  # of failed episodes: never trained on
    shortened_prompts: int = 0  # turns whose prompt left out older turns
    last_failure: str = ""
    transcripts: list[Transcript] = field(default_factory=list)


class Slot:
    """One environment and the episode in it."""

    def __init__(
        self,
        index: int,
        task: str,
        config: Config,
        renderer: Codec,
        workers: Workers,
        seed: Callable[[int], int],
        transcripts: int = 0,
    ):
        """`seed` gives the seed of the slot's n-th episode; every so many `transcripts` are kept (0: none)."""
        self.index = index
        self.task = task
        self.config = config
        self.memory: Memory = config.memory.make("memory")
        cue = config.parser.make("parser").cue
        self.host = Host(config.environment, self.task, cue, workers)
        offer = self.host.offer
        self.parser: ActionParser = config.parser.make("parser", actions=offer.actions, default=offer.default_action)
        self.renderer = renderer
        self.episode = Episode()
        self.tally = Tally()
        self.segments: list[Segment] = []
        self._seed = seed
        self._transcripts = transcripts
        self._turns: list[Turn] = []  # of the open segment
        self._shortened = False  # the newest prompt left out older turns
        self._failures = 0  # since turns were last kept

    @property
    def collected(self) -> int:
        """Turns in the environment since the batch began."""
        return sum(not turn.of_memory for turns in (self._turns, *(s.turns for s in self.segments)) for turn in turns)

    @property
    def _request_id(self) -> str:
        return f"{self.task}/{self.index}/{self.episode.number}"

    async def play(self, engine: Engine, turns: int) -> None:
        while self.collected < turns:
            await self.turn(engine)

    async def turn(self, engine: Engine) -> None:
        """Play one turn; an environment that fails takes its episode's turns with it."""
        try:
            await self._turn(engine)
        except EnvironmentFailure as failure:
            self._drop(failure)

    async def cut(self) -> list[Segment]:
        """End the batch: the open segment closes with the next prompt, rendered and never sampled."""
        if self._turns:
            self._close("cut", await self._next_prompt(), None)
        segments, self.segments = self.segments, []
        return segments

    async def _turn(self, engine: Engine) -> None:
        if self.episode.observation is None:
            await self._begin()
        episode, observation = self.episode, self.episode.observation
        assert observation is not None

        async def ask(messages: list[Message]) -> str:
            turn = await self._consult(engine, observation, messages)
            self._record(turn)
            return turn.text

        prompt = await self._prompt(ask)
        self.tally.shortened_prompts += self._shortened
        generation = await engine.generate(prompt, self._sampling(), self._request_id)
        text = self.renderer.text(generation.token_ids)
        action = await self._understand(text)
        feedback = await self.host.step(action.text)
        invalid = action.status == "invalid"
        reward = feedback.reward - invalid * self.config.environment.invalid_penalty
        shown = self.parser.format(action.thought, action.text) if invalid else text
        tokens = self.renderer.tokens_from(generation.token_ids, action.start)
        bare = self.parser.format("", action.text)
        self._record(Turn(observation, prompt, generation, action, tokens, reward, text, shown, bare))
        episode.actions.append(action.text)
        episode.episode_return += reward
        episode.observation = feedback.observation
        self._write(observation, text, action, reward)
        if feedback.terminated:
            self._end("terminated", (), feedback)
        elif feedback.truncated or episode.turns == self.config.rollout.max_episode_turns:
            self._end("truncated", await self._next_prompt(), feedback)

    async def _understand(self, text: str) -> Action:
        """What a reply means: what the parser cannot read may be a near-miss that the environment knows."""
        action = self.parser.parse(text)
        meaning = await self.host.translate(action.said) if action.status == "invalid" else None
        return replace(action, text=meaning, status="translated") if meaning else action

    async def _begin(self) -> None:
        number = self.episode.number + 1
        self.episode = episode = Episode(number, self._seed(number))  # a level that fails is not tried again
        episode.observation = await self.host.reset(episode.seed)
        if self._transcripts and (number * self.config.rollout.n_env + self.index) % self._transcripts == 0:
            episode.transcript = [episode.observation.instructions]

    async def _consult(self, engine: Engine, observation: Observation, messages: list[Message]) -> Turn:
        """A question of the memory, as a turn of reward 0."""
        prompt = self.renderer.prompt(messages)
        generation = await engine.generate(prompt, self._sampling(), self._request_id)
        text = self.renderer.text(generation.token_ids)
        return Turn(observation, prompt, generation, None, 0, 0.0, text, text, text)

    async def _prompt(self, ask: Ask) -> tuple[int, ...]:
        """The next prompt; where it is too long, without the oldest turns."""
        limit = self.config.rollout.max_prompt_tokens
        past, observation = list(self.episode.past), self.episode.observation
        assert observation is not None
        while True:
            messages = await self.memory.prompt(past, self.episode.turns, observation, ask)
            prompt = self.renderer.prompt(messages)
            if len(prompt) <= limit:
                self._shortened = len(past) < len(self.episode.past)
                return prompt
            if not past:
                raise ValueError(
                    f"rollout.max_prompt_tokens is {limit}, but the instructions and one observation of "
                    f"{self.task} alone take {len(prompt)} tokens; raise it"
                )
            past = past[1:]

    async def _next_prompt(self) -> tuple[int, ...]:
        """The next prompt, rendered without sampling: a memory that would ask first has asked it."""

        async def halt(messages: list[Message]) -> str:
            raise _Asked(messages)

        try:
            return await self._prompt(halt)
        except _Asked as asked:
            return self.renderer.prompt(asked.messages)

    def _sampling(self) -> Sampling:
        rollout, episode = self.config.rollout, self.episode
        episode.sampled += 1
        seed = derive("sample", episode.seed, episode.sampled)
        return Sampling(rollout.max_reply_tokens, rollout.temperature, rollout.top_p, rollout.top_k, seed)

    def _record(self, turn: Turn) -> None:
        self._turns.append(turn)
        past = self.episode.past
        past.append(turn)
        if self.memory.span is not None:
            while past and sum(not turn.of_memory for turn in past) > self.memory.span:
                past.pop(0)

    def _end(self, end: End, final_prompt: tuple[int, ...], feedback: Feedback) -> None:
        episode = self.episode
        outcome = Outcome(feedback.success, episode.episode_return, episode.turns, episode.seed, feedback.progression)
        self._close(end, final_prompt, outcome)
        if episode.transcript is not None:
            won = {True: "success", False: "failure", None: "no verdict"}[feedback.success]
            tail = f"== {end}: {won}, return {episode.episode_return:.2f}, {episode.turns} turns\n"
            text = "\n\n".join([*episode.transcript, feedback.observation.text, tail])
            self.tally.transcripts.append(Transcript(self.index, episode.number, self.task, text))
        self.episode = Episode(episode.number)

    def _close(self, end: End, final_prompt: tuple[int, ...], outcome: Outcome | None) -> None:
        turns, self._turns = tuple(self._turns), []
        self._failures = 0
        self.segments.append(Segment(self.index, self.episode.number, self.task, turns, end, final_prompt, outcome))

    def _drop(self, failure: EnvironmentFailure) -> None:
        self._failures += not isinstance(failure, NeighbourFailure)
        if self._failures >= self.config.environment.max_failures:
            raise ValueError(
                f"{failure} ({self._failures} times in a row, and no turns to keep; see environment.max_failures)"
            ) from failure
        self.tally.failures += 1
        self.tally.dropped_turns += len(self._turns)
        self.tally.last_failure = str(failure)
        self._turns = []
        self.episode = Episode(self.episode.number)
        self.host.renew()

    def _write(self, observation: Observation, text: str, action: Action, reward: float) -> None:
        if self.episode.transcript is not None:
            verdict = f" ({action.status}: {action.said!r})" if action.status != "valid" else ""
            head = f"-- turn {self.episode.turns}"
            self.episode.transcript.append(
                f"{head}\n{observation.text}\n>> {text}\n=> {action.text}{verdict}  reward {reward:g}"
            )

    def state(self) -> dict[str, Any]:
        return asdict(self.episode)

    async def restore(self, state: dict[str, Any]) -> bool:
        """Bring the slot back by playing its episode's actions again; False if it then looks otherwise.

        An environment that is not a function of its seed and actions cannot be brought back: its episode is
        dropped. What was already collected of it keeps its bootstrap.
        """
        self.episode = episode = TypeAdapter(Episode).validate_python(state)
        if episode.observation is None:
            return True
        try:
            observation = await self.host.reset(episode.seed)
            for action in episode.actions:
                observation = (await self.host.step(action)).observation
        except EnvironmentFailure:
            observation = None
        if observation == episode.observation:
            return True
        self.episode = Episode(episode.number)
        self.host.renew()
        return False


class Collector:
    """Plays n_env slots, e_len turns each a batch."""

    def __init__(self, config: Config, renderer: Codec):
        self.config = config
        self.tally = Tally()
        self._workers = Workers(config.environment, config.rollout.n_env)
        tasks = list(config.environment.tasks)
        self.slots: list[Slot] = []
        try:
            for index in range(config.rollout.n_env):
                task = tasks[index % len(tasks)]
                seed = partial(episode_seed, "train", config.seed, task, index)
                slot = Slot(index, task, config, renderer, self._workers, seed, config.log.transcript_every)
                self.slots.append(slot)
        except BaseException:
            self.close()
            raise

    def collect(self, engine: Engine) -> list[Segment]:
        """The segments of one batch, slot by slot in time order."""
        return asyncio.run(self._collect(engine))

    async def _collect(self, engine: Engine) -> list[Segment]:
        self.tally = Tally()
        for slot in self.slots:
            slot.tally = self.tally
        turns = self.config.rollout.e_len
        if self.config.rollout.mode == "async":
            await play_all(slot.play(engine, turns) for slot in self.slots)
        else:
            while short := [slot for slot in self.slots if slot.collected < turns]:
                await play_all(slot.turn(engine) for slot in short)
        return [segment for slot in self.slots for segment in await slot.cut()]

    def close(self) -> None:
        """Let go of the environments."""
        self._workers.close()

    def state(self) -> list[dict[str, Any]]:
        return [slot.state() for slot in self.slots]

    def restore(self, state: Sequence[dict[str, Any]]) -> int:
        """Returns how many slots could not be brought back and begin a new episode."""

        async def restore() -> int:
            done = await asyncio.gather(*(s.restore(one) for s, one in zip(self.slots, state, strict=True)))
            return done.count(False)

        return asyncio.run(restore())


async def play_all(plays: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them together; the first error stops the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for play in plays:
                group.create_task(play)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
