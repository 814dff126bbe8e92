"""Samples in this process, by the module that is trained or, of the families that we know, by a copy of its weights.

A request joins soon after it arrives, since prompts are read a few at a time, and leaves when it is done, so nobody
waits for the longest reply. All requests under way share each forward pass. What they leave behind in the key/value
cache is kept while the weights stay the same: of a prompt that begins like an earlier one, only the rest is read. A
pass reads draft tokens too, where they cost less than they win, and keeps as many as are accepted; on a GPU it is
recorded once instead, and replayed.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from turnwise.engines.cache import Cache
from turnwise.engines.decoder import Decoder
from turnwise.engines.drafts import Draft, Drafts, worth
from turnwise.engines.replay import Replay
from turnwise.engines.reply import Reply
from turnwise.engines.sampler import sample
from turnwise.trunk import alike, last_mlp_at, prepare, tried
from turnwise.types import Generation, Sampling

_WORTH = 32  # tokens that somebody need not read, if another reads them first
_PATIENCE = 8  # passes that a prompt waits at most, for others to be read with it
_PASS = 2**16  # tokens of prompts that are read at once, since what layers compute of them takes memory
_COMPANY = 3  # requests under way for each that waits, up to which prompts are read at once


@dataclass
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    done: asyncio.Future[Generation]
    uniforms: Sequence[float]  # one uniform number a token, [max_tokens]
    text: str  # prompt and reply, with a character for each id
    reply: Reply = field(default_factory=Reply)

    @property
    def tokens(self) -> list[int]:
        return self.reply.tokens

    @property
    def room(self) -> int:
        """For tokens after the next one."""
        return self.sampling.max_tokens - len(self.tokens) - 1

    @property
    def begun(self) -> list[int]:
        """What is to be read before the next token."""
        return [*self.prompt, *self.tokens]

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        self.reply.add(tokens, logprobs, version)
        self.text += "".join(map(chr, tokens))


class LocalEngine:
    """Continuous batching over a transformers causal language model."""

    def __init__(self, model: PreTrainedModel, stop_ids: frozenset[int], precision: AbstractContextManager[object]):
        prepare(model)
        self.model = model
        self.version = 0
        self._stop_ids = stop_ids
        words: Any = model.get_input_embeddings()
        self._words: int = words.num_embeddings
        bf16 = isinstance(precision, torch.autocast)
        self._decoder = Decoder(model, bf16) if Decoder.fits(model, bf16) else None
        self._replays = self._decoder is not None and model.device.type == "cuda"
        self._precision = precision if self._decoder is None else nullcontext()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._waited = 0  # passes since somebody began to wait
        self._cache, self._drafts = Cache(model.device), Drafts(stop_ids)
        known = inspect.signature(type(model.get_decoder()).forward).parameters
        self._cache_named = "cache" if "cache" in known else "past_key_values"  # as older transformers have it
        self._paused = False
        self._driver: asyncio.Task[None] | None = None
        if self._decoder is None:
            with tried(model):
                self._read_and_go_on()

    @torch.inference_mode()
    def _read_and_go_on(self) -> None:
        """A ValueError where that is not what the whole is read as: modules may want another cache."""
        self._cache.reserve(1, 3)
        self._cache.admit([0, 1])
        self._read(0, [[0, 1]])
        found, whole = self._read(0, [[2]]), self.model(torch.tensor([[0, 1, 2]], device=self.model.device))
        if not alike(found, whole.logits[0, -1:]):
            raise ValueError("it goes on otherwise than it reads the whole")
        self._cache = Cache(self.model.device)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """The weights are the trainer's and already here; what was read with them before is forgotten.

        Replies under way go on with the tokens they have.
        """
        self.version = version
        if self._decoder is not None:
            self._decoder.load()
        self._cache.clear()
        self._drafts = Drafts(self._stop_ids)  # as in a run that goes on from here
        self._waiting, self._running = [*self._running, *self._waiting], []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        if not prompt_ids:
            raise ValueError("a prompt is empty, so there is nothing to reply to; let it have a token at least")
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < self._words:
            strange = next(token for token in prompt_ids if not 0 <= token < self._words)
            raise ValueError(f"a prompt holds the id {strange}, and the model has those from 0 to {self._words - 1}")
        uniforms = np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens).tolist()
        done: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(prompt_ids, sampling, done, uniforms, "".join(map(chr, prompt_ids))))
        self._go_on()
        return await done

    def pause(self) -> None:
        """Stop where replies stand. The model is the trainer's when the event loop has gone round once more."""
        self._paused = True

    def resume(self) -> None:
        """Go on with what was paused."""
        self._paused = False
        self._go_on()

    def _go_on(self) -> None:
        if not self._paused and (self._driver is None or self._driver.done()):
            self._driver = asyncio.create_task(self._drive())

    async def _drive(self) -> None:
        """Admit, sample one token for everybody, hand out what is finished; until nobody is left, or a pause."""
        training = self.model.training
        self.model.eval()
        try:
            with self._precision:
                await asyncio.sleep(0)  # everybody who is about to ask gets into the first batch
                while (self._waiting or self._running) and not self._paused:
                    with torch.inference_mode():
                        self._step()
                    await asyncio.sleep(0)  # the finished ones play on and ask again
        except Exception as error:
            for request in (*self._waiting, *self._running):
                if not request.done.done():
                    request.done.set_exception(error)
            self._waiting, self._running, self._cache = [], [], Cache(self.model.device)
        finally:
            self.model.train(training)

    def _step(self) -> None:
        if self._running and self._replays:
            self._sample(0, [()] * len(self._running), self._replayed([one.tokens[-1] for one in self._running]))
        elif self._running:
            least = worth(len(self._running))
            drafts = [self._drafts.propose(request.text, request.room, least) for request in self._running]
            new = [
                [request.tokens[-1], *(drafted.token for drafted in draft)]
                for request, draft in zip(self._running, drafts, strict=True)
            ]
            self._sample(0, drafts, self._read(0, new, every=True))
        if self._waiting:
            self._waited += 1
            if len(self._running) <= _COMPANY * len(self._waiting) or self._waited > _PATIENCE:
                self._begin()
        for row in range(len(self._running) - 1, -1, -1):
            self._finish(row)

    def _begin(self) -> None:
        """Read the prompts of all who wait, and sample their first tokens."""
        self._waited = 0
        longest = max(len(one.prompt) + one.sampling.max_tokens for one in self._waiting)
        self._cache.reserve(len(self._running) + len(self._waiting), longest)
        while self._waiting:
            arrived, self._waiting = self._first_readers()
            arrived.sort(key=lambda one: len(one.begun))  # those of like length are read together
            first = len(self._running)
            self._running += arrived  # at once, so that they hear of it if this fails
            while first < len(self._running):
                prompts = self._admit(self._running[first:])
                self._sample(first, [()] * len(prompts), self._read(first, prompts))
                first += len(prompts)

    def _admit(self, requests: Sequence[_Request]) -> list[Sequence[int]]:
        """What the first of these have still to read, of as many as one pass has room for, filled up to the longest."""
        tight = sum(len(request.begun) for request in requests) > _PASS
        prompts: list[Sequence[int]] = []
        longest = 0
        for request in requests:
            if tight:
                longest = max(longest, len(request.begun) - self._cache.known(request.begun))
                if prompts and (len(prompts) + 1) * longest > _PASS:
                    break
            prompts.append(self._cache.admit(request.begun))
        return prompts

    def _first_readers(self) -> tuple[list[_Request], list[_Request]]:
        """Who reads a prompt now, and who waits until another has read what both begin with."""
        now: list[_Request] = []
        later: list[_Request] = []
        for request in self._waiting:
            prompt = request.begun
            enough = self._cache.known(prompt) + _WORTH
            common = len(prompt) > enough and any(other.begun[:enough] == prompt[:enough] for other in now)
            (later if common else now).append(request)
        return now, later

    def _read(self, first: int, tokens: Sequence[Sequence[int]], every: bool = False) -> Tensor:
        """Read the next tokens of R rows from `first` on, N in all.

        Returns the logits [R, V] after the last of each row, or [N, V] after every one.
        """
        ids, positions = self._cache.extend(first, tokens)
        counts = [len(new) for new in tokens]
        if self._decoder is not None:
            return self._decoder.logits(ids, positions, counts, self._cache, every)
        ids, positions = (pad_sequence([*flat.split(counts)], batch_first=True) for flat in (ids, positions))
        mask = (torch.arange(self._cache.columns, device=ids.device) <= positions[:, :, None])[:, None]
        used = torch.arange(ids.shape[1]) < torch.tensor(counts)[:, None]
        rows, columns = used.nonzero(as_tuple=True) if every else (torch.arange(len(counts)), used.sum(1) - 1)
        trunk = self.model.get_decoder()
        with nullcontext() if every else last_mlp_at(trunk, (rows, columns)):
            given = {"attention_mask": mask, "position_ids": positions, self._cache_named: self._cache}
            output = trunk(ids, **given, use_cache=True)
        return self.model.lm_head(output.last_hidden_state[rows, columns]).float()

    def _replayed(self, tokens: Sequence[int]) -> Tensor:
        """Read the next token of every row; returns the logits [R, V] after it."""
        ids, positions = self._cache.grow(tokens)
        if len(ids) not in self._cache.replays:
            self._cache.replays[len(ids)] = Replay(self._next, ids, positions, self.model.device)
        return self._cache.replays[len(ids)](ids, positions)[: len(tokens)]

    def _next(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The logits [R, V] after one more token [R] of each of the first R rows."""
        assert self._decoder is not None
        counts = [1] * len(ids)
        self._cache.aim(0, positions, counts)
        return self._decoder.logits(ids, positions, counts, self._cache, every=True)

    def _sample(self, first: int, drafts: Sequence[Sequence[Draft]], logits: Tensor) -> None:
        """Sample what follows the last token of each row from `first` on, and its drafts as far as they are accepted.

        Logits are [N, V], one token a row more than is drafted. Each token is drawn as if nothing had been drafted.
        """
        requests = self._running[first : first + len(drafts)]
        drawn = [(one, ahead) for one, draft in zip(requests, drafts, strict=True) for ahead in range(len(draft) + 1)]
        uniforms = [one.uniforms[len(one.tokens) + ahead] for one, ahead in drawn]
        if logits.device.type == "mps":
            logits = logits.cpu()  # since there are no sums in fp64
        places = torch.tensor(uniforms, device=logits.device, dtype=torch.float64)
        tokens, logprobs = map(Tensor.tolist, sample(logits, [one.sampling for one, _ in drawn], places))
        start = 0
        for row, (request, draft) in enumerate(zip(requests, drafts, strict=True), first):
            accepted = next((n for n, drafted in enumerate(draft) if tokens[start + n] != drafted.token), len(draft))
            stop = start + accepted + 1
            request.add(tokens[start:stop], logprobs[start:stop], self.version)
            if not self._replays:
                self._drafts.learn(request.text, accepted + 1)
                self._drafts.verified(draft, accepted)
            start += len(draft) + 1
            self._cache.forget(row, start - stop)

    def _finish(self, row: int) -> None:
        request = self._running[row]
        stopped = request.tokens[-1] in self._stop_ids
        if not stopped and len(request.tokens) < request.sampling.max_tokens and not request.done.cancelled():
            return
        self._running[row] = self._running[-1]
        self._running.pop()
        self._cache.release(row)
        if not request.done.cancelled():
            request.done.set_result(request.reply.finished("stop" if stopped else "length"))
