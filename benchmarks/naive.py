"""PPO over turns as one would first write it: correct, and with no thought of speed.

Prompts are padded on the left and sampled by `generate`; for training all rows are padded to the longest, every
model reads them whole, and the logits of every position are made. Critic and frozen reference are whole models of
their own. The critic's GAE runs over the tokens of a slot, from turn to turn, and does not bootstrap at the cut.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.workers.serve import Job, Line, reward
from turnwise.models import arithmetic

LR = 1e-5
CLIP = 0.2
KL = 1e-3
ENTROPY = 1e-3
GAMMA, LAMBDA = 0.99, 0.95


@dataclass
class Rows:
    """One row a turn; the reply is what stands in its last columns."""

    tokens: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool: no padding
    rewards: Tensor  # [B]


def main() -> None:
    line = Line()
    naive = Naive(line.job)
    for _ in line.requests():
        start = time.perf_counter()
        rows = naive.collect()
        middle = time.perf_counter()
        steps = naive.update(rows)
        seconds = {"collect": middle - start, "update": time.perf_counter() - middle}
        line.answer(turns=len(rows.tokens), sampled=len(rows.tokens) * line.job.reply_tokens, steps=steps, **seconds)


class Naive:
    def __init__(self, job: Job):
        self.job = job
        self.actor, self.critic, self.reference = (
            AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32) for _ in range(3)
        )
        self.value_head = nn.Linear(self.critic.config.hidden_size, 1)
        self.precision = arithmetic(job.precision, self.actor.device)
        trained = (self.actor, self.critic.get_decoder(), self.value_head)
        self.parameters = [parameter for module in trained for parameter in module.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LR)

    def collect(self) -> Rows:
        """Sample a turn of every slot at a time, as slots must wait for their environments."""
        width = max(map(len, self.job.prompts)) + self.job.reply_tokens
        tokens = torch.zeros((len(self.job.prompts), width), dtype=torch.long)
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        for wave in self.job.waves:
            with self.precision:
                ids, seen = generate(self.actor, [self.job.prompts[turn] for turn in wave], self.job.reply_tokens)
            tokens[wave, width - ids.shape[1] :] = ids
            mask[wave, width - ids.shape[1] :] = seen
        rewards = torch.tensor([reward(row[-self.job.reply_tokens :].tolist()) for row in tokens])
        return Rows(tokens, mask, rewards)

    def update(self, rows: Rows) -> int:
        """Score, credit, and one epoch of minibatches; returns the optimizer steps."""
        size = self.job.minibatch
        parts = torch.arange(len(rows.tokens)).split(size)
        with torch.no_grad():
            old = torch.cat([self.logprobs(self.actor, rows, part)[0] for part in parts])
            reference = torch.cat([self.logprobs(self.reference, rows, part)[0] for part in parts])
            old_values = torch.cat([self.values(rows, part) for part in parts])
        gains = -KL * (old - reference)
        gains[:, -1] += rows.rewards
        advantages = gae(gains, old_values, slots=len(self.job.next_prompts))
        returns = advantages + old_values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        order = torch.randperm(len(rows.tokens))
        for part in order.split(size):
            new, entropy = self.logprobs(self.actor, rows, part)
            ratio = (new - old[part]).exp()
            gain = torch.minimum(ratio * advantages[part], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[part])
            error = 0.5 * (self.values(rows, part) - returns[part]) ** 2
            (error - gain - ENTROPY * entropy).mean().backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return len(order.split(size))

    def logprobs(self, model: PreTrainedModel, rows: Rows, part: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the replies, each [b, reply_tokens]."""
        with self.precision:
            logits = model(**inputs(rows, part)).logits
        logprobs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        chosen = logprobs.gather(2, rows.tokens[part][:, 1:, None])[..., 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return chosen[:, -self.job.reply_tokens :], entropy[:, -self.job.reply_tokens :]

    def values(self, rows: Rows, part: Tensor) -> Tensor:
        """Values before each token of the replies, [b, reply_tokens]."""
        with self.precision:
            hidden = self.critic.get_decoder()(**inputs(rows, part)).last_hidden_state
        return self.value_head(hidden.float())[:, -self.job.reply_tokens - 1 : -1, 0]


def generate(model: PreTrainedModel, prompts: Sequence[Sequence[int]], reply_tokens: int) -> tuple[Tensor, Tensor]:
    """Prompts and replies, padded on the left, and where they are no padding, both [B, T]."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    tokens = model.generate(  # pyright: ignore[reportCallIssue]
        tokens,
        attention_mask=mask.long(),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=reply_tokens,
        max_new_tokens=reply_tokens,
        pad_token_id=0,
    )
    return tokens, torch.cat([mask, torch.ones((len(prompts), reply_tokens), dtype=torch.bool)], dim=1)


def inputs(rows: Rows, part: Tensor) -> dict[str, Tensor]:
    mask = rows.mask[part]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": rows.tokens[part], "attention_mask": mask.long(), "position_ids": positions}


def gae(rewards: Tensor, values: Tensor, slots: int) -> Tensor:
    """Advantages of all tokens [B, reply_tokens], along the turns of each slot."""
    along = rewards.reshape(slots, -1), values.reshape(slots, -1)
    advantages = torch.zeros_like(along[0])
    after = next_value = torch.zeros(slots)
    for column in range(advantages.shape[1] - 1, -1, -1):
        reward, value = along[0][:, column], along[1][:, column]
        after = reward + GAMMA * next_value - value + GAMMA * LAMBDA * after
        advantages[:, column], next_value = after, value
    return advantages.reshape(rewards.shape)


if __name__ == "__main__":
    main()
