"""What whole episodes tell about a model: pure functions of segments that are not cut."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from turnwise.intervals import wilson
from turnwise.types import Segment, Turn

BLOCK = 1000  # words; distinct-n falls as a text grows, so it is taken of texts of one length


@dataclass(frozen=True)
class Score:
    """How one player did on one task, or on all of them."""

    task: str
    episodes: int
    successes: int | None  # None where the environment does not tell
    mean_return: float
    mean_turns: float

    @property
    def rate(self) -> float | None:
        return None if self.successes is None else self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, by Wilson."""
        return None if self.successes is None else wilson(self.successes, self.episodes)


@dataclass(frozen=True)
class Actions:
    """Turns by what their action was."""

    valid: int
    translated: int
    invalid: int

    def share(self, status: str) -> float:
        return getattr(self, status) / (self.valid + self.translated + self.invalid)


@dataclass(frozen=True)
class Reasoning:
    """What stands before the actions."""

    distinct: tuple[float | None, float | None, float | None]  # of words, pairs and triples of words
    resemblance: float | None  # 0 to 1, mean over consecutive thoughts of an episode
    repeated: float | None  # share of thoughts that are the one before, word for word
    tokens_median: float  # sampled before the action, markers included
    tokens_p90: float
    cut: float  # share of replies that reached max_reply_tokens


@dataclass(frozen=True)
class Sheet:
    """All figures of a model on one task, or on all of them."""

    score: Score
    actions: Actions
    reasoning: Reasoning


@dataclass(frozen=True)
class Lengths:
    """Of prompts, in tokens."""

    mean: float
    p90: float
    longest: int


def sheet(task: str, episodes: Sequence[Segment]) -> Sheet:
    return Sheet(_score(task, episodes), _actions(episodes), _reasoning(episodes))


def pooled(scores: Sequence[Score], name: str) -> Score:
    """All tasks as one, each episode counted once."""
    episodes = sum(score.episodes for score in scores)
    told = [score.successes for score in scores if score.successes is not None]
    return Score(
        name,
        episodes,
        sum(told) if len(told) == len(scores) else None,
        sum(score.mean_return * score.episodes for score in scores) / episodes,
        sum(score.mean_turns * score.episodes for score in scores) / episodes,
    )


def played(episode: Segment) -> list[Turn]:
    """The turns in the environment, without those that the memory asked for."""
    return [turn for turn in episode.turns if not turn.of_memory]


def lengths(prompts: Sequence[int]) -> Lengths:
    return Lengths(float(np.mean(prompts)), float(np.quantile(prompts, 0.9)), max(prompts))


def distinct(thoughts: Sequence[str], n: int) -> float | None:
    """Different n-grams of words among all of them (distinct-n, Li et al., arXiv:1510.03055); None if there are none.

    The mean over blocks of BLOCK words or a little more; a last block that is shorter counts only if it is alone.
    """
    ratios = []
    for block in _blocks(thoughts):
        grams = [gram for thought in block for gram in _grams(thought, n)]
        if grams:
            ratios.append(len(set(grams)) / len(grams))
    return float(np.mean(ratios)) if ratios else None


def resemblance(one: str, other: str) -> float:
    """Pairs of neighbouring words that two texts share, among those in either (Broder 1997): 0 to 1.

    The beginning counts as a word, so that a text of one word has a pair too.
    """
    pairs, others = (set(_grams(["", *_words(text)], 2)) for text in (one, other))
    return len(pairs & others) / len(pairs | others) if pairs | others else 1.0


def newcombe(one: Score, other: Score, comparisons: int = 1) -> tuple[float, float]:
    """The 95% interval of a difference of two rates of success, from their own (Newcombe 1998, method 10).

    Where it is one of several `comparisons`, all their intervals hold together in 95% (Bonferroni).
    """
    assert one.rate is not None and one.successes is not None
    assert other.rate is not None and other.successes is not None
    difference, z = one.rate - other.rate, NormalDist().inv_cdf(1 - 0.025 / comparisons)
    (low, high), (other_low, other_high) = (wilson(x.successes or 0, x.episodes, z) for x in (one, other))
    below = math.hypot(one.rate - low, other_high - other.rate)
    above = math.hypot(high - one.rate, other.rate - other_low)
    return difference - below, difference + above


def _score(task: str, episodes: Sequence[Segment]) -> Score:
    ended = [(episode.task, episode.outcome) for episode in episodes if episode.outcome]
    outcomes = [outcome for _, outcome in ended]
    told = [outcome.success for outcome in outcomes if outcome.success is not None]
    silent = {task for task, _ in ended} - {task for task, outcome in ended if outcome.success is not None}
    return Score(
        task,
        len(outcomes),
        None if silent else sum(told),
        float(np.mean([outcome.episode_return for outcome in outcomes])),
        float(np.mean([outcome.turns for outcome in outcomes])),
    )


def _actions(episodes: Sequence[Segment]) -> Actions:
    statuses = Counter(turn.action.status for episode in episodes for turn in played(episode) if turn.action)
    return Actions(statuses["valid"], statuses["translated"], statuses["invalid"])


def _reasoning(episodes: Sequence[Segment]) -> Reasoning:
    told = [[turn.action.thought for turn in played(episode) if turn.action] for episode in episodes]
    # All first thoughts, then all second ones: a block then compares episodes, and resemblance the turns of one.
    mixed = [thought for turn in itertools.zip_longest(*told) for thought in turn if thought]
    pairs = [pair for thoughts in told for pair in itertools.pairwise(thoughts) if all(pair)]
    turns = [turn for episode in episodes for turn in played(episode)]
    tokens = [len(turn.generation.token_ids) - turn.action_tokens for turn in turns]
    return Reasoning(
        (distinct(mixed, 1), distinct(mixed, 2), distinct(mixed, 3)),
        float(np.mean([resemblance(*pair) for pair in pairs])) if pairs else None,
        float(np.mean([one == other for one, other in pairs])) if pairs else None,
        float(np.median(tokens)),
        float(np.quantile(tokens, 0.9)),
        float(np.mean([turn.generation.finish_reason == "length" for turn in turns])),
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _blocks(thoughts: Sequence[str]) -> list[list[list[str]]]:
    """Thoughts as words, in order, cut into blocks of at least BLOCK words; a short rest only if it is all there is."""
    blocks: list[list[list[str]]] = []
    block: list[list[str]] = []
    for words in map(_words, thoughts):
        block.append(words)
        if sum(map(len, block)) >= BLOCK:
            blocks.append(block)
            block = []
    return blocks or [block]
