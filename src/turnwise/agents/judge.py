"""Ends an episode on a sample with what the recipe's reward function says of it."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from turnwise.groups import ROUNDING
from turnwise.protocols import Session, Setting
from turnwise.rewards import Reward
from turnwise.types import Ending, Message, Sample


class Talk(Protocol):
    """What is judged."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def text(self) -> str:
        """All that was sampled, and nothing that was shown."""
        ...


class Judge:
    """Without a reward function an episode earns what tools and simulated users gave, and nobody tells of success.

    What a reward function has judged is over, a limit or not: it said what all of it was worth, and to bootstrap from
    the next prompt would count that twice, and never teach the critic what comes of running into a limit.
    """

    def __init__(self, setting: Setting):
        config = setting.config.reward
        self._reward = setting.shared.once("reward", partial(Reward, config)) if config else None

    async def __call__(
        self, session: Session, sample: Sample, talk: Talk, final_prompt: tuple[int, ...] = ()
    ) -> Ending:
        """`final_prompt` is what would have been asked next, where a limit stopped the episode."""
        if self._reward is None:
            return Ending(final_prompt)
        score = await self._reward.score(sample, talk.messages, talk.text)
        session.reward(score.value)
        for name, value in score.metrics.items():
            session.count(f"reward/{name}", value)
        return Ending((), success=score.value >= 1 - ROUNDING, progression=min(max(score.value, 0.0), 1.0))
