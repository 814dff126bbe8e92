"""What we look at: named means over tokens, turns and episodes."""

from collections import Counter
from collections.abc import Sequence, Set
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from turnwise.batch import Batch
from turnwise.groups import by_level, is_useless
from turnwise.intervals import wilson
from turnwise.loss import explained_variance, kl_k3
from turnwise.tally import Tally
from turnwise.types import Segment
from turnwise.update import Credit

RECENT = 100  # levels of each task over which the running success is taken


class Recent:
    """The newest outcomes of each task, by level: what the episodes of a group have in common is no evidence twice."""

    def __init__(self, tasks: Sequence[str]):
        self.told = set[str]()  # tasks of which success was told: where it is not, there was none
        self._won: dict[str, dict[int, list[bool]]] = {task: {} for task in tasks}  # of each level, by its seed

    def add(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment.outcome is not None:
                success, levels = segment.outcome.success, self._won[segment.task]
                if success is not None:
                    self.told.add(segment.task)
                levels.setdefault(segment.seed, []).append(bool(success))
                if len(levels) > RECENT:
                    del levels[next(iter(levels))]

    def metrics(self) -> dict[str, float]:
        """The mean over levels, and its interval as if each level were one trial."""
        figures = {}
        for task, levels in self._won.items():
            if task in self.told and levels:
                wins = sum(map(fmean, levels.values()))
                low, high = wilson(wins, len(levels))
                figures |= {
                    f"success/{task}": wins / len(levels),
                    f"success/{task}/low": low,
                    f"success/{task}/high": high,
                }
        return figures

    def state(self) -> dict[str, Any]:
        return {"told": sorted(self.told), "won": {task: list(levels.items()) for task, levels in self._won.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self.told |= {*state.get("told", ())}
        for task, levels in state.get("won", {}).items():
            self._won[task] = {seed: list(won) for seed, won in levels}


def measure(tally: Tally, told: Set[str] = frozenset()) -> dict[str, float]:
    """How the turns of a batch were played, and the means of what agents counted, over the episodes that ended.

    What an agent did not count in an episode is 0 there. So is progression where neither it nor success is told, in
    tasks of which success was `told`.
    """
    segments = tally.played
    turns = [turn for segment in segments for turn in segment.turns]
    acted = [turn.action for turn in turns if turn.action is not None]
    statuses = Counter(action.status for action in acted)
    outcomes = [segment.outcome for segment in segments if segment.outcome is not None]
    replies = [len(turn.generation.token_ids) for turn in turns]
    prompts = [len(turn.prompt_ids) for turn in turns]
    figures = {f"turns/{status}": statuses[status] / len(acted) for status in ("valid", "translated", "invalid")}
    figures |= {
        "turns/reward": sum(turn.reward for turn in turns) / len(acted),
        "turns/reply_tokens": sum(replies) / len(turns),
        "turns/reply_cut": sum(turn.generation.finish_reason == "length" for turn in turns) / len(turns),
        "turns/prompt_tokens": sum(prompts) / len(turns),
        "turns/prompt_tokens_max": max(prompts),
        "turns/shortened_prompts": tally.shortened_prompts,
        "episodes/finished": len(outcomes),
        "episodes/failed": tally.failures,
        "episodes/dropped_turns": tally.dropped_turns,
        "groups/left_out": tally.useless_groups,
    }
    for end in ("terminated", "truncated", "cut"):
        figures[f"segments/{end}"] = sum(segment.end == end for segment in segments)
    if outcomes:
        figures["episodes/return"] = sum(outcome.episode_return for outcome in outcomes) / len(outcomes)
        figures["episodes/turns"] = sum(outcome.turns for outcome in outcomes) / len(outcomes)
        ended = [(segment.task in told, segment.outcome) for segment in segments if segment.outcome is not None]
        lost = [0.0 for known, one in ended if known and one.success is None and one.progression is None]
        if done := [*(one.progression for _, one in ended if one.progression is not None), *lost]:
            figures["episodes/progression"] = fmean(done)
        names = {name: None for outcome in outcomes for name in outcome.figures}  # in the order of the first mention
        for name in names:
            figures[name] = sum(outcome.figures.get(name, 0.0) for outcome in outcomes) / len(outcomes)
    return figures


def invalid_texts(segments: Sequence[Segment], most: int = 3) -> list[tuple[str, int]]:
    """What the model most often wrote instead of a legal action."""
    said = (turn.action.said for s in segments for turn in s.turns if turn.action and turn.action.status == "invalid")
    return Counter(said).most_common(most)


def measure_credit(batch: Batch, credit: Credit) -> dict[str, float]:
    """How far the policy has gone from what sampled the batch and from the reference, in its reasoning and in its
    actions, and what the critic knows.

    An action KL that outgrows the reasoning KL is the sign of action hacking: reward taken by editing only the action.
    """
    acting = batch.in_action
    figures = {"turns/older_tokens": 1 - batch.newest.float().mean()}
    if credit.returns is not None:
        figures |= _judge_critic(batch, credit, credit.returns)
    if credit.reference is not None:
        k1 = credit.kl.double()  # in fp32 the divergence of a small one is rounding
        k3 = kl_k3(k1, torch.zeros_like(k1))
        for name, where in (("all", torch.ones_like(acting)), ("action", acting), ("reasoning", ~acting)):
            if where.any():
                figures[f"kl/{name}"] = credit.kl[where].mean()
                figures[f"kl/{name}_k3"] = k3[where].mean()
    return {name: float(value) for name, value in figures.items()}


def _judge_critic(batch: Batch, credit: Credit, returns: Tensor) -> dict[str, Tensor]:
    """Where it learns."""
    learned, values = credit.learned, credit.old_values
    first = learned & batch.turn_firsts
    figures = {
        "critic/explained_variance": explained_variance(values[learned], returns[learned]),
        "critic/value": values[learned].mean(),
        "critic/return": returns[learned].mean(),
    }
    if first.any():
        figures["critic/explained_variance_first"] = explained_variance(values[first], returns[first])
    return figures


def measure_groups(segments: Sequence[Segment]) -> dict[str, float]:
    """On how many levels whole episodes were played, and on how many of these nothing could be compared."""
    groups = by_level(segments)
    return {"groups/played": len(groups), "groups/useless": sum(map(is_useless, groups))}
