"""The reward of a whole episode, from a function that anybody may write.

The function asks for what it needs by the names of its parameters:

| name | gets |
|---|---|
| `sample` | the Sample |
| `messages` | the whole conversation with its roles: prompt, replies, tools, users |
| `text`, or as verl calls it `solution_str` | what the model sampled, and nothing that it was shown |
| `data_source`, `ground_truth` | those of the sample |
| `extra_info` | the sample's other columns, with `index`, `tools_kwargs` and `interaction_kwargs` |

It returns a number, or a dict with `score` and figures to log; texts beside them are left out.
It may be async; if not, it runs in a thread.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from turnwise.calling import Overrun, bounded, invoke
from turnwise.config import RewardConfig
from turnwise.failures import EpisodeFailure, place
from turnwise.figures import finite, shown
from turnwise.types import Message, Sample


@dataclass(frozen=True, slots=True)
class Score:
    value: float  # lands on the last sampled token of the episode
    metrics: Mapping[str, float] = field(default_factory=dict)


class RewardFault(EpisodeFailure):
    """The scorer, not the model, is at fault, so that the episode cannot be learnt from."""


class Reward:
    """What a recipe's `reward` names. Used by all episodes, many at a time."""

    def __init__(self, config: RewardConfig):
        self.name, self.timeout_s = config.use, config.timeout_s
        self._function = config.bind("reward")
        self._names = set(inspect.signature(self._function).parameters)

    async def score(self, sample: Sample, messages: Sequence[Message], text: str) -> Score:
        """`text` is what was sampled in all turns, in order. Raises RewardFault, of one sentence."""
        offered = {
            "sample": sample,
            "messages": list(messages),
            "text": text,
            "solution_str": text,
            "data_source": sample.data_source,
            "ground_truth": sample.ground_truth,
            "extra_info": _extra_info(sample),
        }
        asked = {name: value for name, value in offered.items() if name in self._names}
        try:
            answer = await bounded(invoke(self._function, **asked), self.timeout_s)
        except Overrun as error:
            raise RewardFault(f"reward {self.name} did not answer within {self.timeout_s:g} s") from error
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise RewardFault(f"reward {self.name} failed on sample {sample.index}: {said}{place(error)}") from error
        return self._checked(answer)

    def _checked(self, answer: Any) -> Score:
        figures = dict(answer) if isinstance(answer, Mapping) else {"score": answer}
        value = finite(figures.pop("score", None))
        if value is None:
            raise RewardFault(
                f"reward {self.name} returned {shown(answer)}; return a finite number, or a dict with one as `score`"
            )
        metrics = {str(name): finite(figure) for name, figure in figures.items() if isinstance(figure, Real)}
        for name, figure in metrics.items():
            if figure is None:
                given = shown(figures[name])
                raise RewardFault(f"reward {self.name} returned {given} as {name}; return finite numbers")
        return Score(value, metrics)  # type: ignore[arg-type]  # None has been refused


def _extra_info(sample: Sample) -> dict[str, Any]:
    own = {"tools_kwargs": sample.tools_kwargs, "interaction_kwargs": sample.interaction_kwargs}
    return {"index": sample.index, **own, **sample.extra}
