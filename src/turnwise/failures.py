"""What can go wrong while an episode is played. Its turns are then dropped and counted, and never trained on."""

import traceback
from pathlib import Path


class EpisodeFailure(RuntimeError):
    """An episode cannot go on, through no fault of the model."""


class EnvironmentFailure(EpisodeFailure):
    """An environment raised, hung, died or answered nonsense."""


class NeighbourFailure(EnvironmentFailure):
    """An environment was lost with the process that it shared, through no fault of its own."""


def first_of(error: BaseException) -> BaseException:
    """What it was, where tasks that ran side by side have told of it as a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def place(error: BaseException) -> str:
    """Where it was raised, for whoever wrote what was called; nothing where the call itself was wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    if len(frames) < 2 or isinstance(error, SyntaxError):  # which says where it stands
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
