"""Simulated users, who answer the model."""

from turnwise.interactions.base import BaseInteraction
from turnwise.interactions.dialogue import Dialogue, UserTurn
from turnwise.interactions.load import Interactions, load_interactions

__all__ = ["BaseInteraction", "Dialogue", "Interactions", "UserTurn", "load_interactions"]
