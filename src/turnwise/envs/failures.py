"""What can go wrong with an environment while it is played."""


class EnvironmentFailure(RuntimeError):
    """An environment raised, hung, died or answered nonsense."""


class NeighbourFailure(EnvironmentFailure):
    """An environment was lost with the process that it shared, through no fault of its own."""
