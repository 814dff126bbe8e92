"""What an episode of a sample is worth."""

from turnwise.rewards.reward import Reward, RewardFault, Score

__all__ = ["Reward", "RewardFault", "Score"]
