"""Turnwise: reinforcement learning for language-model agents over long tasks, where every turn is a data point."""

__version__ = "0.1.0"
