"""What the figures of a probe mean for the training that is to follow, in plain words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from turnwise.probe.measure import Score, newcombe
from turnwise.probe.play import MemoryFigures, Probe

# The Verlog report has 95 % of the turns valid before it trains: any other turn is about the format, not the task.
VALID = 0.95
# A reply that is cut has seldom reached its action, so it may take no larger share than invalid ones.
CUT = 0.05
# A sentence that says where something is has about eight tokens; with less there is nothing to credit but the action.
THOUGHT = 8
# Two sentences of ten words that differ in one number share two thirds of their pairs: above, less than that changed.
RESEMBLANCE = 2 / 3
# Each pair of words comes five times in a block of a thousand words: these are filled-in forms.
DISTINCT = 0.2
# A cause behind most failures is worth a change of the prompt by itself.
MOST = 0.5

Mark = Literal["good", "look", "mend"]


@dataclass(frozen=True)
class Verdict:
    """`mend` it before training, `look` at it, or it is `good`; the finding holds the figure that it rests on."""

    mark: Mark
    finding: str
    advice: str = ""


def verdicts(probe: Probe) -> list[Verdict]:
    """What to mend first, then what to look at, then what is good."""
    found = [*_actions(probe), *_success(probe), *_reasoning(probe), *_prompts(probe), *_failures(probe)]
    return sorted([*found, *_memory(probe)], key=lambda verdict: ("mend", "look", "good").index(verdict.mark))


def percent(share: float) -> str:
    """In whole percent; a share that is neither none nor all is never shown as such."""
    if 0 < share < 0.01 or 0.99 < share < 1:
        return f"{share:.1%}" if 0.001 <= share <= 0.999 else "below 0.1%" if share < 0.5 else "above 99.9%"
    return f"{share:.0%}"


def rate(score: Score) -> str:
    """31% [24, 39], or the mean return where success is not told."""
    if score.rate is None or score.interval is None:
        return f"return {score.mean_return:.2f}"
    low, high = score.interval
    return f"{percent(score.rate)} [{100 * low:.0f}, {100 * high:.0f}]"


def _actions(probe: Probe) -> Iterator[Verdict]:
    actions = probe.sheets[0].actions
    understood = 1 - actions.share("invalid")
    finding = f"Understood actions: {percent(understood)} ({percent(actions.share('translated'))} by translation)"
    if understood < VALID:
        yield Verdict("mend", f"{finding}, below {percent(VALID)}.", _remedy(probe, understood))
        return
    yield Verdict("good", f"{finding}.")
    shares = {sheet.score.task: 1 - sheet.actions.share("invalid") for sheet in probe.sheets[1:]}
    poor = [f"{task} {percent(share)}" for task, share in shares.items() if share < VALID]
    if poor:
        yield Verdict("look", f"Understood actions are below {percent(VALID)} in {', '.join(poor)}.")


def _remedy(probe: Probe, understood: float) -> str:
    """Whether the answer format is the trouble, or the words for actions."""
    invalid = probe.sheets[0].actions.invalid
    silent = sum(text.count for text in probe.texts if not text.said)
    nearby = sum(text.count for text in probe.texts if text.nearest)
    parts = ["Improve the prompt, or take a model that knows the format."]
    if silent > MOST * invalid:
        parts.append(f"{percent(silent / invalid)} of the invalid replies have no action line at all.")
    if nearby:
        reached = understood + nearby / invalid * (1 - understood)
        parts.append(f"With the translations suggested below it would be {percent(reached)}.")
    return " ".join(parts)


def _success(probe: Probe) -> Iterator[Verdict]:
    score, chance = probe.sheets[0].score, probe.rivals.get("random", (None,))[0]
    if score.rate is None:
        yield from _returns(score, chance)
        return
    if chance is not None and chance.rate is not None:  # it may never have come to where success is told
        low, high = newcombe(score, chance)
        both = f"{rate(score)}, random play {rate(chance)}; difference {100 * low:+.0f} to {100 * high:+.0f} points"
        if low > 0:
            yield Verdict("good", f"Success is above random play: {both}.")
        else:
            word = "below" if high < 0 else "not above"
            advice = "What it was told or how it must answer may stand in its way: read the failures below."
            yield Verdict("mend", f"Success is {word} random play: {both}.", advice)
    never = [sheet.score for sheet in probe.sheets[1:] if sheet.score.successes == 0]
    if never:
        tasks = ", ".join(one.task for one in never)
        bound = max(one.interval[1] for one in never if one.interval)
        finding = f"No success in {never[0].episodes} episodes of {tasks} (95%: at most {percent(bound)})."
        advice = "A reward of success alone has nothing to begin with there: play more episodes, or make it easier."
        yield Verdict("mend" if len(never) == len(probe.sheets) - 1 else "look", finding, advice)


def _returns(score: Score, chance: Score | None) -> Iterator[Verdict]:
    """Where success is not told; the spread of returns is not known, so nothing is called good."""
    finding = f"The environment tells of no success; mean return {score.mean_return:.2f}, penalties included"
    if chance is None:
        yield Verdict("look", f"{finding}.")
    elif score.mean_return <= chance.mean_return:
        yield Verdict(
            "mend", f"{finding}, not above random play's {chance.mean_return:.2f}.", "Read the replies first."
        )
    else:
        yield Verdict("look", f"{finding}, random play {chance.mean_return:.2f}.")


def _reasoning(probe: Probe) -> Iterator[Verdict]:
    reasoning = probe.sheets[0].reasoning
    pairs, limit = reasoning.distinct[1], probe.config.rollout.max_reply_tokens
    if reasoning.cut > CUT:
        finding = f"Replies cut at {limit} tokens: {percent(reasoning.cut)}, above {percent(CUT)}."
        yield Verdict("mend", finding, "Raise rollout.max_reply_tokens, or ask for shorter reasoning.")
    if reasoning.tokens_median < THOUGHT:
        finding = f"Reasoning is {reasoning.tokens_median:.0f} tokens in the median, below {THOUGHT}."
        yield Verdict("mend", finding, "Ask for reasoning before the action, or show an example in the instructions.")
    alike = reasoning.resemblance is not None and reasoning.resemblance > RESEMBLANCE
    if alike and reasoning.repeated is not None:
        finding = (
            f"Consecutive thoughts share {percent(reasoning.resemblance or 0)} of their word pairs, and "
            f"{percent(reasoning.repeated)} are the same word for word."
        )
        yield Verdict("look", finding, "It may copy what it is shown: try a smaller memory.thoughts or memory.turns.")
    if pairs is not None and pairs < DISTINCT:
        finding = f"Thoughts are of one form: distinct-2 is {pairs:.2f}, below {DISTINCT:g}."
        yield Verdict("look", finding, "That leaves exploration little to choose from.")
    elif pairs is not None and not alike:
        yield Verdict("good", f"Thoughts differ: distinct-2 is {pairs:.2f}.")


def _prompts(probe: Probe) -> Iterator[Verdict]:
    limit, longest = probe.config.rollout.max_prompt_tokens, probe.prompts.longest
    if probe.shortened:
        finding = f"Prompts reach the limit of {limit} tokens: {percent(probe.shortened)} of the turns lost history."
        yield Verdict("look", finding, "Raise rollout.max_prompt_tokens, or remember fewer turns.")
    else:
        yield Verdict("good", f"Prompts fit: the longest has {longest} of {limit} tokens.")


def _failures(probe: Probe) -> Iterator[Verdict]:
    failed = sum(group.count for group in probe.failures)
    if failed and (worst := probe.failures[0]).count > MOST * failed:
        finding = f"{worst.count} of {failed} failures are of one kind: {worst.cause}."
        yield Verdict("look", finding, _REMEDIES[worst.cause])


_REMEDIES = {
    "invalid actions": "Nothing else can be judged before actions are understood.",
    "never left the start": "See in the transcripts what it keeps trying, and say in the instructions why it fails.",
    "loop": "Tell it not to repeat what changed nothing, or let it remember more turns.",
    "ended in failure": "See in the transcripts whether it knew the danger.",
    "out of time": "See in the transcripts whether it searches or wanders.",
}


def _memory(probe: Probe) -> Iterator[Verdict]:
    played = [memory for memory in probe.memories if memory.sheets and memory.sheets[0].score.rate is not None]
    if len(played) < 2:
        return
    best = max(played, key=_rate_of)
    rates = ", ".join(f"{memory.turns}: {percent(_rate_of(memory))}" for memory in played)
    worst = min(played, key=_rate_of)
    low, _ = newcombe(best.sheets[0].score, worst.sheets[0].score, math.comb(len(played), 2))
    if low > 0:
        yield Verdict("look", f"Memory matters (turns: success {rates}).", f"Best is memory.turns={best.turns}.")
    else:
        yield Verdict("look", f"No memory is surely better than another (turns: success {rates}).", "Take a short one.")
    full = [memory for memory in played if memory.shortened]
    if full:
        turns = ", ".join(f"{memory.turns} ({percent(memory.shortened or 0)} of the turns)" for memory in full)
        yield Verdict("look", f"The limit cut the prompts of memory {turns}.", "Raise rollout.max_prompt_tokens.")


def _rate_of(memory: MemoryFigures) -> float:
    return memory.sheets[0].score.rate or 0.0
