"""Episodes of the same level form a group: what one of them was worth, the others tell."""

from collections.abc import Iterable, Sequence

from turnwise.types import Segment

ROUNDING = 1e-9  # equal rewards in another order add up to sums that differ in their last bits


def level(segment: Segment) -> tuple[str, int]:
    """What it was played on: task and seed."""
    return segment.task, segment.seed


def refuse_parts(segments: Iterable[Segment]) -> None:
    """A ValueError where a segment is not a whole episode: its end or its beginning lies in another batch."""
    for segment in segments:
        if segment.outcome is None or segment.outcome.turns != segment.acted:
            raise ValueError(
                f"slot {segment.slot} brings a part of its episode {segment.episode}, but without a critic only whole "
                "episodes can be credited; set rollout.episodes=1, or an estimator with a critic"
            )


def by_level(segments: Iterable[Segment]) -> list[list[Segment]]:
    """The groups, in the order of their first episodes."""
    groups: dict[tuple[str, int], list[Segment]] = {}
    for segment in segments:
        groups.setdefault(level(segment), []).append(segment)
    return list(groups.values())


def is_useless(group: Sequence[Segment]) -> bool:
    """Its episodes all returned the same, so that none tells anything of another. A group of one is useless."""
    returns = [segment.outcome.episode_return for segment in group if segment.outcome is not None]
    return max(returns) - min(returns) <= ROUNDING


def filter_groups(segments: Sequence[Segment]) -> tuple[list[Segment], int]:
    """The whole episodes of groups that teach, in their order, and how many useless groups were left out."""
    refuse_parts(segments)
    groups = by_level(segments)
    useless = {level(group[0]) for group in groups if is_useless(group)}
    return [segment for segment in segments if level(segment) not in useless], len(useless)
