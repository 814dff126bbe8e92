"""A reply in the making, sampled by as many servers and versions of the weights as it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.types import Finish, Generation


@dataclass
class Reply:
    """What is sampled stays, whoever goes on with it. One log-prob and one version a token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += [version] * len(tokens)

    def cut(self, length: int) -> None:
        """Forget what came after so many tokens."""
        for kept in (self.tokens, self.logprobs, self.versions):
            del kept[length:]

    def finished(self, reason: Finish) -> Generation:
        versions = tuple(self.versions) if len(set(self.versions)) > 1 else ()
        return Generation(tuple(self.tokens), tuple(self.logprobs), reason, self.versions[-1], versions)
