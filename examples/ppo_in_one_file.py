"""PPO over turns, all of it on one page: a small language model learns to play BabyAI in words.

A turn is one exchange with the model: a prompt, the tokens that were sampled, the action they mean, the reward that
followed. Each turn is a data point of its own, so that an episode may last as long as it likes, and credit flows back
from turn to turn through a critic (Verlog). Only the environment is turnwise's. The package does the same with parts
that can be exchanged, and tests/test_twin.py holds the package and this page to the same numbers.

    python examples/ppo_in_one_file.py --steps 30 --tasks goto pickup

Read it from top to bottom: play, batch, credit, losses, update, and at last the loop over all of them.
Shapes: B rows, T columns, N sampled tokens, D width of the model, V vocabulary. A row is a turn, and column t of a
[B, T] tensor speaks of its token t; where the model did not choose that token, the number means nothing.
"""

import argparse
import math
from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from turnwise.envs.babyai import BabyAIText

TINY = Path(__file__).parents[1] / "src/turnwise/models/tiny"  # the embedded model
CUE = "Answer with THINK: and ACTION:"  # the answer format, in the words that the embedded model knows

N_ENV, E_LEN = 32, 8  # environments side by side, and turns of each in a batch
MAX_REPLY = 32  # tokens
INVALID_PENALTY = 0.1  # for a reply that names no legal action
KL_PENALTY = 1e-3  # for every nat that a token is likelier than under the reference, the model as it was at first
STEP_GAMMA, STEP_LAMBDA = 0.99, 0.95  # discounts from the last token of a turn to the next turn
TOKEN_GAMMA, TOKEN_LAMBDA = 1.0, 1.0  # discounts from token to token inside a turn
CLIP, DUAL_CLIP, VALUE_CLIP = 0.2, 3.0, 0.5
FIRST_TOKEN_WEIGHT = 3.0  # in the critic's loss: from this value the turn before bootstraps
ENTROPY_BONUS = 1e-3
EPOCHS, MINIBATCH = 1, 64  # passes over a batch, and turns in an optimizer step
ACTOR_LR, CRITIC_LR, WEIGHT_DECAY, MAX_GRADIENT = 3e-4, 1e-3, 0.01, 1.0
WARMUP_BATCHES, WARMUP_ITERATIONS, WARMUP_SHARE = 6, 4, 0.5  # the critic's lessons before the actor moves


# ---- play


@dataclass
class Turn:
    prompt: list[int]
    reply: list[int]  # as sampled, the end-of-turn token included; never tokenised again
    logprobs: list[float]  # of the reply's tokens
    reward: float  # falls on the reply's last token


@dataclass
class Segment:
    """Consecutive turns of one environment within a batch."""

    turns: list[Turn]
    next_prompt: list[int]  # rendered, never answered; empty where the task is over and nothing follows


class Slot:
    """An environment with a memory of one turn. It lives on across batches, playing one episode after the other."""

    def __init__(self, task: str, seed: int):
        self.env = BabyAIText(task)
        self.rng = np.random.default_rng(seed)
        self.turns: list[Turn] = []  # of the open segment
        self.begin()

    def begin(self) -> None:
        self.seen, _ = self.env.reset(seed=int(self.rng.integers(2**31)))
        self.past: tuple[str, list[int]] | None = None  # what was seen in the turn before, and the reply to it


def render(tokenizer: Any, seen: dict[str, str], past: tuple[str, list[int]] | None) -> list[int]:
    """The prompt: instructions, the turn before, the current observation. A past reply keeps its very ids."""
    text, reply = past or ("", [])
    hole = "\ue000"  # where they go
    shown = [{"role": "user", "content": text}, {"role": "assistant", "content": hole}]
    messages = [
        {"role": "system", "content": seen["instructions"]},
        *(shown if past else ()),
        {"role": "user", "content": f"{seen['text']}\n{CUE}"},
    ]
    head, _, tail = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True).partition(hole)
    if reply and reply[-1] == tokenizer.eos_token_id:  # else the length limit cut it short
        tail = tail.removeprefix(tokenizer.eos_token)
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in (head, tail))
    return before + reply + after


def parse(text: str, env: BabyAIText) -> tuple[str | None, str]:
    """The action that a reply names, None if it names no legal one; and the thought before it."""
    thought, marker, said = text.rpartition("ACTION:")
    if not marker:
        thought, said = text, ""
    said = said.strip().partition("\n")[0].strip(" .").lower()
    action = said if said in env.actions else env.translate(said)  # "grab the ball" means "pick up"
    return action, thought.strip().removeprefix("THINK:").strip()


@torch.no_grad()
def sample(actor: Any, prompts: list[list[int]], stop: int) -> list[tuple[list[int], list[float]]]:
    """A reply to each prompt, and the log-probs of its tokens. All rows go on until the last one has stopped."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])  # [B, T], padded on the left
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=actor.config)
    replies: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for _ in range(MAX_REPLY):
        output = actor(tokens, mask, positions, cache, logits_to_keep=1)
        logprobs = output.logits[:, -1].log_softmax(-1)  # [B, V]
        tokens = torch.multinomial(logprobs.exp(), 1)  # [B, 1]
        chosen = logprobs.gather(1, tokens)
        for (ids, scores), token, score in zip(replies, tokens[:, 0].tolist(), chosen[:, 0].tolist(), strict=True):
            if not ids or ids[-1] != stop:
                ids.append(token)
                scores.append(score)
        if all(ids[-1] == stop for ids, _ in replies):
            break
        mask = torch.cat([mask, torch.ones_like(tokens)], 1)
        positions = positions[:, -1:] + 1
    return replies


def play(actor: Any, tokenizer: Any, slots: list[Slot]) -> tuple[list[Segment], list[bool]]:
    """A batch: E_LEN turns of every slot, wherever its episode stands. Also, of each episode that ended, if it won.

    A segment ends in one of three ways. The task is over: what follows is worth 0. A time limit stopped it: something
    would have followed. The batch is full: the next one goes on from here. In the last two cases the next prompt is
    rendered, for the critic to say what was still to come.
    """
    segments, wins = [], []
    for _ in range(E_LEN):
        prompts = [render(tokenizer, slot.seen, slot.past) for slot in slots]
        replies = sample(actor, prompts, tokenizer.eos_token_id)
        for slot, prompt, (reply, logprobs) in zip(slots, prompts, replies, strict=True):
            action, thought = parse(tokenizer.decode(reply, skip_special_tokens=True), slot.env)
            played, shown = action or slot.env.default_action, reply
            if action is None:  # memory shows what was played instead, lest the model copy its own mistakes
                text = f"THINK: {thought}\nACTION: {played}" if thought else f"ACTION: {played}"
                shown = tokenizer.encode(text, add_special_tokens=False)
            slot.past = (slot.seen["text"], shown)
            slot.seen, _, terminated, truncated, info = slot.env.step(played)
            reward = float(info["success"]) - INVALID_PENALTY * (action is None)
            slot.turns.append(Turn(prompt, reply, logprobs, reward))
            if terminated or truncated:
                segments.append(Segment(slot.turns, [] if terminated else render(tokenizer, slot.seen, slot.past)))
                wins.append(info["success"])
                slot.turns = []
                slot.begin()
    for slot in slots:
        if slot.turns:
            segments.append(Segment(slot.turns, render(tokenizer, slot.seen, slot.past)))
            slot.turns = []
    return segments, wins


# ---- models and batch


class Critic(nn.Module):
    """A copy of the actor with one number for a head, at first 0: what is still to come."""

    def __init__(self, actor: Any):
        super().__init__()
        self.trunk = deepcopy(actor.get_decoder())
        self.head = nn.Linear(actor.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] the value of where one stands after reading a token."""
        return self.head(self.trunk(input_ids=tokens, use_cache=False).last_hidden_state)[..., 0]


def forward(actor: Any, tokens: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens, and entropies (nats) where they were drawn; both [B, T]."""
    hidden = actor.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state  # [B, T, D]
    before = hidden[:, :-1][sampled[:, 1:]]  # [N, D]: a token is predicted where the one before it was read
    logprobs = actor.lm_head(before).log_softmax(-1)  # [N, V]
    chosen = logprobs.gather(1, tokens[sampled][:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    zeros = torch.zeros(tokens.shape)
    return zeros.masked_scatter(sampled, chosen), zeros.masked_scatter(sampled, entropy)


@dataclass
class Batch:
    """One row a turn: prompt, reply, padding. The turns stand in the order of the segments."""

    segments: list[Segment]
    tokens: Tensor  # [B, T]
    sampled: Tensor  # [B, T] bool: chosen by the model, not shown to it
    first: Tensor  # [B, T] bool: first sampled token of a row
    logprobs: Tensor  # [B, T] when they were sampled
    rewards: Tensor  # [B, T] the environment's on the last sampled token, less the KL penalty on each of them


def make_batch(segments: list[Segment], reference: Any) -> Batch:
    turns = [turn for segment in segments for turn in segment.turns]
    tokens = pad([turn.prompt + turn.reply for turn in turns])
    sampled = pad([[False] * len(turn.prompt) + [True] * len(turn.reply) for turn in turns])
    logprobs = pad([[0.0] * len(turn.prompt) + turn.logprobs for turn in turns])
    rewards = pad([[0.0] * (len(turn.prompt) + len(turn.reply) - 1) + [turn.reward] for turn in turns])
    with torch.no_grad():  # a few rows at a time, to save memory
        parts = zip(tokens.split(MINIBATCH), sampled.split(MINIBATCH), strict=True)
        kl = logprobs - torch.cat([forward(reference, *part)[0] for part in parts])
    return Batch(segments, tokens, sampled, sampled & ~sampled.roll(1, 1), logprobs, rewards - KL_PENALTY * kl)


def pad(rows: list[Any]) -> Tensor:
    """[B, T], padded on the right, where a causal model does not look."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


# ---- credit


def gae(
    rewards: list[float], values: list[float], bootstrap: float, turn_lengths: list[int]
) -> tuple[list[float], list[float]]:
    """Advantages and returns of a segment's sampled tokens; `bootstrap` is the value of what follows the last one.

    Turns of 2, 3 and 2 tokens, of which the last wins (reward 1 on the last token, bootstrap 0), with the values
    .50 .55 | .60 .65 .70 | .80 .90 have the advantages .4515 .4015 | .3801 .3301 .2801 | .2000 .1000.
    """
    turn_ends = set(np.cumsum(turn_lengths) - 1)
    advantages = [0.0] * len(values)
    next_value, next_advantage = bootstrap, 0.0
    for t in reversed(range(len(values))):
        gamma, lam = (STEP_GAMMA, STEP_LAMBDA) if t in turn_ends else (TOKEN_GAMMA, TOKEN_LAMBDA)
        surprise = rewards[t] + gamma * next_value - values[t]
        advantages[t] = surprise + gamma * lam * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


@torch.no_grad()
def assign_credit(batch: Batch, critic: Critic) -> tuple[Tensor, Tensor, Tensor]:
    """Values by the critic as it is now, advantages and returns, all [B, T]. Credit flows along segments."""
    values = torch.cat([critic(tokens) for tokens in batch.tokens.split(MINIBATCH)]).roll(1, 1)  # before each token
    advantages, returns = torch.zeros(values.shape), torch.zeros(values.shape)
    row = 0
    for segment in batch.segments:
        rows = slice(row, row + len(segment.turns))
        row = rows.stop
        sampled = batch.sampled[rows]
        following = critic(torch.tensor([segment.next_prompt]))[0, -1].item() if segment.next_prompt else 0.0
        lengths = [len(turn.reply) for turn in segment.turns]
        streams = gae(batch.rewards[rows][sampled].tolist(), values[rows][sampled].tolist(), following, lengths)
        advantages[rows][sampled], returns[rows][sampled] = torch.tensor(streams)
    return values, advantages, returns


def whiten(advantages: Tensor, sampled: Tensor) -> Tensor:
    """Zero mean and unit variance over all sampled tokens of the batch."""
    chosen = advantages[sampled]
    return (advantages - chosen.mean()) / (chosen.var() + 1e-8).sqrt()


# ---- losses


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """PPO's clipped surrogate, negated; a bad token that has become likely costs DUAL_CLIP |advantage| at most."""
    ratio = (logprobs - old_logprobs).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * DUAL_CLIP), loss)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, first: Tensor, clip: float = VALUE_CLIP) -> Tensor:
    """Half the squared error, or that of the value kept near the old one, whichever is larger."""
    near = old_values + (values - old_values).clamp(-clip, clip)
    loss = 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return torch.where(first, FIRST_TOKEN_WEIGHT * loss, loss)


# ---- update


def make_optimizer(model: nn.Module, lr: float) -> AdamW:
    return AdamW(model.parameters(), lr, weight_decay=WEIGHT_DECAY)


def descend(loss: Tensor, model: nn.Module, optimizer: AdamW) -> float:
    """One optimizer step."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
    optimizer.step()
    return loss.item()


def train_actor(batch: Batch, advantages: Tensor, actor: Any, optimizer: AdamW, minibatches: Iterable[Tensor]) -> float:
    """A step on each minibatch, a tensor of row numbers. Every sampled token weighs the same. Returns the mean loss."""
    advantages = whiten(advantages, batch.sampled)
    losses = []
    for rows in minibatches:
        sampled = batch.sampled[rows]
        logprobs, entropy = forward(actor, batch.tokens[rows], sampled)
        loss = policy_loss(logprobs, batch.logprobs[rows], advantages[rows]) - ENTROPY_BONUS * entropy
        losses.append(descend(loss[sampled].mean(), actor, optimizer))
    return float(np.mean(losses))


def train_critic(
    batch: Batch,
    old: Tensor,
    returns: Tensor,
    critic: Critic,
    optimizer: AdamW,
    minibatches: Iterable[Tensor],
    clip: float = VALUE_CLIP,
) -> float:
    """The same for the critic; `old` are its values before it learned from this batch."""
    losses = []
    for rows in minibatches:
        values = critic(batch.tokens[rows]).roll(1, 1)
        loss = value_loss(values, old[rows], returns[rows], batch.first[rows], clip)
        losses.append(descend(loss[batch.sampled[rows]].mean(), critic, optimizer))
    return float(np.mean(losses))


# ---- all of it


def main(arguments: Sequence[str] | None = None) -> None:
    cli = argparse.ArgumentParser(description="PPO over turns, on one page.")
    cli.add_argument("--model", default=TINY, help="a folder with an instruct model in the format of Hugging Face")
    cli.add_argument("--tasks", nargs="+", default=["goto", "pickup"])
    cli.add_argument("--steps", type=int, default=30, help="batches to train on")
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args(arguments)

    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    actor: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    reference, critic = deepcopy(actor), Critic(actor)
    actor_optimizer, critic_optimizer = make_optimizer(actor, ACTOR_LR), make_optimizer(critic, CRITIC_LR)
    slots = [Slot(options.tasks[i % len(options.tasks)], seed=options.seed * N_ENV + i) for i in range(N_ENV)]
    recent: deque[bool] = deque(maxlen=100)  # did the last episodes succeed? (At first only quick wins have ended.)

    # A critic that knows nothing yet would only harm the actor: it learns first, from the play of the untrained actor.
    collected: list[Segment] = []
    for _ in range(WARMUP_BATCHES):
        segments, wins = play(actor, tokenizer, slots)
        collected += segments
        recent.extend(wins)
    batch = make_batch(collected, reference)
    for _ in range(WARMUP_ITERATIONS):  # each time all turns are credited by the critic as it is now
        values, _, returns = assign_credit(batch, critic)
        some = torch.randperm(len(values))[: math.ceil(WARMUP_SHARE * len(values))].split(MINIBATCH)
        loss = train_critic(batch, values, returns, critic, critic_optimizer, some, clip=math.inf)
        print(f"critic's warm-up: value loss {loss:.4f}", flush=True)

    for step in range(1, options.steps + 1):
        segments, wins = play(actor, tokenizer, slots)
        recent.extend(wins)
        batch = make_batch(segments, reference)
        values, advantages, returns = assign_credit(batch, critic)
        minibatches = [rows for _ in range(EPOCHS) for rows in torch.randperm(len(values)).split(MINIBATCH)]
        actor_loss = train_actor(batch, advantages, actor, actor_optimizer, minibatches)
        critic_loss = train_critic(batch, values, returns, critic, critic_optimizer, minibatches)
        success = f"success {np.mean(recent or [0]):.2f} of {len(recent)} episodes"
        print(f"step {step}: {success}, policy loss {actor_loss:+.4f}, value loss {critic_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
