"""The worker's end of peers.py: the job is a file, then every line asks for one round and gets one line back.

Standard library alone, since it runs in the environments of other projects too.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# LoRA adapters, where they are trained instead of all weights
RANK, ALPHA, TARGETS = 8, 16, ["q_proj", "v_proj"]


@dataclass(frozen=True)
class Job:
    """The same work for every contestant."""

    model: str  # a Hugging Face folder, weights in fp32
    prompts: list[list[int]]  # of all turns, slot by slot in time order
    next_prompts: list[list[int]]  # what each slot would ask next, for a critic that bootstraps
    reply_tokens: int  # sampled in each turn, no more and no less
    minibatch: int  # turns an optimizer step; every turn is trained on once
    precision: str  # fp32 or bf16

    @property
    def waves(self) -> list[list[int]]:
        """The turns that can be sampled together: one of each slot, since its next prompt needs its last reply."""
        slots = len(self.next_prompts)
        length = len(self.prompts) // slots
        return [[slot * length + number for slot in range(slots)] for number in range(length)]

    def parts(self, concurrency: int) -> list[list[list[int]]]:
        """Prompts to sample from, `concurrency` of them at a time, in all at least 16."""
        count = max(16, concurrency) // concurrency
        return [self.prompts[part * concurrency : (part + 1) * concurrency] for part in range(count)]

    @property
    def optimizer_steps(self) -> int:
        return len(self.prompts) // self.minibatch


def reward(reply: Sequence[int]) -> float:
    """What every contestant pays for a reply: nothing to learn, something to compute with."""
    return float(sum(reply) % 2)


class Line:
    """The way to whoever asks."""

    def __init__(self) -> None:
        self.job = Job(**json.loads(Path(sys.argv[1]).read_text()))
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # libraries may print what they like: it goes to the error stream

    def requests(self) -> Iterator[dict[str, Any]]:
        """Says that the worker is ready, then waits for one request after the other."""
        self.answer()
        for line in sys.stdin:
            yield json.loads(line)

    def answer(self, **figures: float) -> None:
        print(json.dumps(figures), file=self._answers, flush=True)
