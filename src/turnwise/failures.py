"""What can go wrong while an episode is played. Its turns are then dropped and counted, and never trained on."""


class EpisodeFailure(RuntimeError):
    """An episode cannot go on, through no fault of the model."""


class EnvironmentFailure(EpisodeFailure):
    """An environment raised, hung, died or answered nonsense."""


class NeighbourFailure(EnvironmentFailure):
    """An environment was lost with the process that it shared, through no fault of its own."""
