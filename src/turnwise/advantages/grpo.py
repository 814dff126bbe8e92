"""Group relative policy optimization: an episode against its group (DeepSeekMath, arXiv:2402.03300).

With R the sum of an episode's rewards, for each of its tokens:

    A = (R - mean of the group) / (standard deviation of the group + 1e-6)

Without the division it is the advantage of Dr. GRPO (arXiv:2503.20783): levels that are nearly always or nearly never
solved then weigh no more than others. That paper's other change, no mean over each reply by itself, is how losses are
taken here anyway.
"""

from dataclasses import dataclass

from turnwise.advantages import spans
from turnwise.advantages.relative import above_mean, episode_returns, levels
from turnwise.batch import Estimate, Streams


@dataclass(frozen=True)
class GRPO:
    critic = False
    groups = True
    whiten = False

    divide_by_std: bool = True

    def __call__(self, streams: Streams) -> Estimate:
        advantages = above_mean(episode_returns(streams), levels(streams), self.divide_by_std)
        return Estimate(spans.spread(advantages, streams.segment_ends).float())
