"""Samples in this process from the very module that is trained: no copy of the weights, no second log-prob.

A request joins as soon as it arrives and leaves when it is done, so nobody waits for the longest reply. All
requests under way share each forward pass. Their rows of the key/value cache lie side by side; when one leaves,
the last row moves into its place.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from turnwise.types import Generation, Sampling

_ROOM = 64  # cache columns are added in such steps


@dataclass
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    done: asyncio.Future[Generation]
    luck: np.ndarray  # one uniform number a token, [max_tokens]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class _Cache:
    """Keys and values, a row a request: per layer [rows, heads, columns, size]. Stands in for a transformers cache."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.lengths = torch.zeros(0, dtype=torch.long)  # [rows], columns in use
        self.rows = 0
        self._where: tuple[Tensor, Tensor] = (self.lengths, self.lengths)
        self._columns = 0

    def admit(self, prompts: Any, lengths: Tensor, room: int) -> None:
        """Append the rows of freshly read prompts; `room` is the longest that any of them can become."""
        layers = [(layer.keys, layer.values) for layer in prompts.layers]
        new, columns = len(lengths), int(lengths.max())
        self._reserve(layers, self.rows + new, room)
        for mine, (keys, values) in zip(zip(self.keys, self.values, strict=True), layers, strict=True):
            mine[0][self.rows : self.rows + new, :, :columns] = keys[:, :, :columns]
            mine[1][self.rows : self.rows + new, :, :columns] = values[:, :, :columns]
        self.lengths[self.rows : self.rows + new] = lengths
        self.rows += new

    def release(self, row: int) -> None:
        """Give up a row; the last one takes its place."""
        self.rows -= 1
        for tensor in (*self.keys, *self.values, self.lengths):
            tensor[row] = tensor[self.rows]

    def extend(self) -> tuple[Tensor, Tensor]:
        """Open a column for one more token in every row. Returns its positions [R, 1] and the mask [R, 1, 1, T]."""
        lengths = self.lengths[: self.rows]
        self._where = (torch.arange(self.rows, device=lengths.device), lengths.clone())
        self._columns = int(lengths.max()) + 1
        mask = torch.arange(self._columns, device=lengths.device) <= lengths[:, None]
        self.lengths[: self.rows] += 1
        return self._where[1][:, None], mask[:, None, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Called by the attention of each layer with the newest token's keys and values [R, heads, 1, size]."""
        rows, columns = self._where
        self.keys[layer][rows, :, columns] = keys[:, :, 0].to(self.keys[layer].dtype)
        self.values[layer][rows, :, columns] = values[:, :, 0].to(self.values[layer].dtype)
        return self.keys[layer][: self.rows, :, : self._columns], self.values[layer][: self.rows, :, : self._columns]

    def _reserve(self, layers: list[tuple[Tensor, Tensor]], rows: int, columns: int) -> None:
        held = self.keys[0].shape if self.keys else (0, 0, 0, 0)
        if rows <= held[0] and columns <= held[2]:
            return
        rows, columns = max(rows, held[0]), max(-(-columns // _ROOM) * _ROOM, held[2])
        grown = []
        for mine, like in ((self.keys, [k for k, _ in layers]), (self.values, [v for _, v in layers])):
            # Zeros, since the columns not yet written are read under a mask, and 0 x NaN is NaN.
            fresh = [like_.new_zeros((rows, like_.shape[1], columns, like_.shape[3])) for like_ in like]
            for new, old in zip(fresh, mine, strict=False):
                new[: self.rows, :, : old.shape[2]] = old[: self.rows]
            grown.append(fresh)
        self.keys, self.values = grown
        lengths = torch.zeros(rows, dtype=torch.long, device=self.keys[0].device)
        lengths[: self.rows] = self.lengths[: self.rows]
        self.lengths = lengths


class LocalEngine:
    """Continuous batching over a transformers causal language model."""

    def __init__(self, model: PreTrainedModel, stop_ids: frozenset[int], precision: AbstractContextManager[object]):
        self.model = model
        self.version = 0
        self._stop_ids = stop_ids
        self._precision = precision
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._cache = _Cache()
        self._driver: asyncio.Task[None] | None = None

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """The weights are shared with the trainer and are already here: only the version changes."""
        self.version = version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        luck = np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens)
        done: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(prompt_ids, sampling, done, luck))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await done

    async def _drive(self) -> None:
        """Admit, sample one token for everybody, hand out what is finished; until nobody is left."""
        training = self.model.training
        self.model.eval()
        try:
            with self._precision:
                await asyncio.sleep(0)  # everybody who is about to ask gets into the first batch
                while self._waiting or self._running:
                    with torch.inference_mode():
                        self._step()
                    await asyncio.sleep(0)  # the finished ones play on and ask again
        except Exception as error:
            for request in (*self._waiting, *self._running):
                if not request.done.done():
                    request.done.set_exception(error)
        finally:
            self._waiting, self._running, self._cache = [], [], _Cache()
            self.model.train(training)

    def _step(self) -> None:
        if self._running:
            self._sample(self._running, self._decode())
        if self._waiting:
            arrived, self._waiting = self._waiting, []
            self._running += arrived  # first, so that they hear of it if this fails
            self._sample(arrived, self._prefill(arrived))
        for row in range(len(self._running) - 1, -1, -1):
            self._finish(row)

    def _prefill(self, requests: list[_Request]) -> Tensor:
        """Read the prompts; returns the hidden states [R, D] at their last tokens."""
        lengths = torch.tensor([len(request.prompt) for request in requests])
        tokens = torch.zeros((len(requests), int(lengths.max())), dtype=torch.long)
        for row, request in zip(tokens, requests, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        cache = DynamicCache(config=self.model.config)
        # Padding is on the right, where a causal model cannot see it: no mask is needed.
        hidden = self._trunk(tokens.to(self.model.device), past_key_values=cache, use_cache=True).last_hidden_state
        lengths = lengths.to(self.model.device)
        self._cache.admit(cache, lengths, max(len(r.prompt) + r.sampling.max_tokens for r in requests))
        return hidden[torch.arange(len(requests)), lengths - 1]

    def _decode(self) -> Tensor:
        """Read the newest token of every running request; returns the hidden states [R, D] at them."""
        tokens = torch.tensor([[request.tokens[-1]] for request in self._running], device=self.model.device)
        positions, mask = self._cache.extend()
        output = self._trunk(
            tokens, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
        )
        return output.last_hidden_state[:, 0]

    def _sample(self, requests: list[_Request], hidden: Tensor) -> None:
        logits = self.model.lm_head(hidden).float()
        luck = torch.tensor([request.luck[len(request.tokens)] for request in requests], device=logits.device)
        tokens, logprobs = sample(logits, [request.sampling for request in requests], luck)
        for request, token, logprob in zip(requests, tokens.tolist(), logprobs.tolist(), strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)

    def _finish(self, row: int) -> None:
        request = self._running[row]
        stopped = request.tokens[-1] in self._stop_ids
        if not stopped and len(request.tokens) < request.sampling.max_tokens:
            return
        self._running[row] = self._running[-1]
        self._running.pop()
        self._cache.release(row)
        generation = Generation(
            tuple(request.tokens), tuple(request.logprobs), "stop" if stopped else "length", self.version
        )
        if not request.done.cancelled():
            request.done.set_result(generation)

    @property
    def _trunk(self) -> torch.nn.Module:
        return self.model.get_decoder()


def sample(logits: Tensor, sampling: list[Sampling], luck: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row [R] by inverting the cumulative distribution at `luck` [R] (uniform in [0, 1)).

    Also returns its log-prob [R] at the row's temperature under the whole distribution: what the trainer computes.
    Logits are [R, V]. At temperature 0 the likeliest token is taken, and scored at temperature 1.
    """
    temperature = torch.tensor([s.temperature or 1.0 for s in sampling], device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    allowed = logprobs
    if any(s.top_k or s.top_p < 1 for s in sampling):
        allowed = torch.stack([_filter(row, s) for row, s in zip(logprobs, sampling, strict=True)])
    cumulative = allowed.double().exp().cumsum(dim=-1)
    target = luck.double()[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    greedy = torch.tensor([s.temperature == 0 for s in sampling], device=logits.device)
    tokens = torch.where(greedy, logits.argmax(dim=-1), tokens.clamp(max=logits.shape[-1] - 1))
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _filter(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs [V] with all but the top k, and all beyond the nucleus of mass top_p, at minus infinity."""
    ranked, order = logprobs.sort(descending=True)
    before = ranked.exp().cumsum(dim=-1) - ranked.exp()
    out = before >= sampling.top_p  # the first token that reaches the mass is kept
    if sampling.top_k:
        out[sampling.top_k :] = True
    return logprobs.index_fill(0, order[out], -torch.inf)
