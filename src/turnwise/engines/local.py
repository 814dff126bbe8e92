"""Samples in this process, by the module that is trained or, of the families that we know, by a copy of its weights.

A request joins soon after it arrives, since prompts are read a few at a time, and leaves when it is done, so nobody
waits for the longest reply. All requests under way share each forward pass. What they leave behind in the key/value
cache is kept while the weights stay the same: of a prompt that begins like an earlier one, only the rest is read. A
pass reads guessed tokens too, where they cost less than they win, and samples as many as come true; on a GPU it is
recorded once instead, and replayed.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.engines.decoder import Decoder
from turnwise.engines.replay import Replay
from turnwise.engines.reply import Reply
from turnwise.trunk import last_mlp_at, prepare
from turnwise.types import Generation, Sampling

_ROOM = 64  # cache columns are added in such steps
_WORTH = 32  # tokens that somebody need not read, if another reads them first
_ENDING = 4  # tokens of a text's end that are looked for in it
_PATIENCE = 8  # passes that a prompt waits at most, for others to be read with it
_COMPANY = 3  # requests under way for each that waits, up to which prompts are read at once
_AHEAD = 4  # tokens that are guessed at a time, where few requests are under way:
_TOGETHER = 64  # tokens in one pass beyond which a guess costs more than it wins


@dataclass
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    done: asyncio.Future[Generation]
    luck: Sequence[float]  # one uniform number a token, [max_tokens]
    text: str  # prompt and reply with a character for each id, as Python finds strings in strings fast
    reply: Reply = field(default_factory=Reply)

    @property
    def tokens(self) -> list[int]:
        return self.reply.tokens

    @property
    def begun(self) -> list[int]:
        """What is to be read before the next token."""
        return [*self.prompt, *self.tokens]

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        self.reply.add(tokens, logprobs, version)
        self.text += "".join(map(chr, tokens))

    def guess(self, room: int) -> list[int]:
        """At most so many next tokens: what followed where the text last read as it ends now, and so on in a circle.

        Prompt lookup decoding (Saxena, 2023): agents repeat what they have read.
        """
        room = min(room, self.sampling.max_tokens - len(self.tokens) - 1)
        for length in range(_ENDING if room > 0 else 0, 0, -1):
            place = self.text.rfind(self.text[-length:], 0, -1)
            if place >= 0:
                return [ord(token) for token in islice(cycle(self.text[place + length :]), room)]
        return []


class _Cache:
    """A row a request: per layer keys and values, [2, rows, heads, columns, size]. Stands in for a transformers cache.

    The first `busy` rows are in use. The others rest: they keep what they hold for prompts that begin with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy = 0
        self.replays: dict[int, Replay] = {}  # of passes over so many rows of the tensors as they are now
        self._device = device
        self._held: list[list[int]] = []  # the ids whose keys and values a row holds
        self._rested: list[int] = []  # since when a row rests
        self._clock = 0
        self._layers: list[Tensor] = []
        self._rows = self._columns = 0  # that the tensors must have
        self._positions = torch.empty(0)  # [R, T] of what is new
        self._places = torch.empty(0)  # [N x 2 x heads] of its keys and values among all vectors of a layer
        self._seen: tuple[slice, slice] = (slice(0), slice(0))  # rows and columns that are read now

    def clear(self) -> None:
        """Forget all tokens, and what was recorded of a model; keep the tensors."""
        self.busy, self._held, self._rested = 0, [], []
        self.replays.clear()

    def reserve(self, rows: int, columns: int) -> None:
        """Be large enough for so many busy rows of so many tokens, so that the tensors grow once and not row by row."""
        self._rows, self._columns = max(self._rows, rows), max(self._columns, columns)
        self._fit()

    def admit(self, prompt: Sequence[int]) -> Sequence[int]:
        """Take the next row for a prompt. Returns the rest that must be read.

        That is one token at least, since what follows the last one is wanted.
        """
        donor, known = self.find(prompt)
        resting = range(self.busy, len(self._held))
        if donor in resting and known == len(self._held[donor]):
            row = donor  # the prompt goes on from there
        elif resting:
            row = min(resting, key=self._rested.__getitem__)
        else:
            row = len(self._held)
            self._held.append([])
            self._rested.append(0)
        if row != donor and known:
            for tensor in self._layers:
                tensor[:, row, :, :known] = tensor[:, donor, :, :known]
        self._held[row] = list(prompt[:known])
        self._swap(row, self.busy)
        self.busy += 1
        return prompt[known:]

    def find(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The row that holds most of a prompt's beginning, and how many tokens; the last one is not looked for."""
        donor, known = 0, 0
        for row, held in enumerate(self._held):
            if held[: known + 1] == prompt[: known + 1]:  # else it holds no more
                donor, known = row, max(known, _common(held, prompt[:-1]))
        return donor, known

    def forget(self, row: int, tokens: int) -> None:
        """Take back so many of the last tokens; what they left is overwritten before anybody looks there."""
        held = self._held[row]
        del held[len(held) - tokens :]

    def release(self, row: int) -> None:
        """Let a row rest; the last busy one takes its place."""
        self._clock += 1
        self._rested[row] = self._clock
        self.busy -= 1
        self._swap(row, self.busy)

    def extend(self, first: int, tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Open columns for the next tokens of R rows from `first` on.

        Returns their ids [R, T], padded on the right, their positions [R, T] and the attention mask [R, 1, T, C].
        """
        stop, width = first + len(tokens), max(map(len, tokens))
        ids = torch.tensor([[*new, *[0] * (width - len(new))] for new in tokens], device=self._device)
        starts = torch.tensor([len(held) for held in self._held[first:stop]], device=self._device)
        positions = starts[:, None] + torch.arange(width, device=self._device)
        columns = max(len(held) for held in self._held[first:stop]) + width
        self._columns = max(self._columns, columns)
        self._fit()
        for held, new in zip(self._held[first:stop], tokens, strict=True):
            held += new
        # Padding leaves its keys behind a row's own, where no token looks before they are overwritten.
        return ids, positions, self.aim(first, positions, columns)

    def aim(self, first: int, positions: Tensor, columns: int | None = None) -> Tensor:
        """Let new tokens be kept at positions [R, T] of the rows from `first` on; returns the mask of attention.

        It is [R, 1, T, C] for so many columns, or all.
        """
        columns, stop = columns or self._columns, first + len(positions)
        self._positions, self._seen = positions, (slice(first, stop), slice(columns))
        return (torch.arange(columns, device=self._device) <= positions[:, :, None])[:, None]

    def grow(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Open a column for the next token of each busy row.

        Returns ids and positions of a power of two of rows, or all of them: a few numbers of rows come again and again.
        What stands in the others lies behind their own, where no token looks before it is overwritten.
        """
        rows = min(1 << (len(tokens) - 1).bit_length(), len(self._held))
        positions = [len(held) for held in self._held[:rows]]
        self._columns = max(self._columns, 1 + max(positions))
        self._fit()
        for held, token in zip(self._held, tokens, strict=False):
            held.append(token)
        return [*tokens, *[0] * (rows - len(tokens))], positions

    def keep(self, new: Tensor, layer: int, chosen: Tensor | None = None) -> Tensor:
        """Keep a layer's new keys and values [N, 2, heads, size]; returns what is looked at [2, R, heads, C, size].

        They are of all the R x T tokens that `extend` opened columns for, or of the chosen ones [N] among them.
        """
        if layer == len(self._layers):
            self._layers.append(new.new_zeros((2, self._rows, new.shape[2], self._columns, new.shape[3])))
        held, (span, width) = self._layers[layer], self._seen
        if layer == 0 or held.shape != self._layers[layer - 1].shape:
            places = self._places_in(held)
            self._places = (places if chosen is None else places[chosen]).flatten()
        held.view(-1, held.shape[-1]).index_copy_(0, self._places, new.reshape(-1, held.shape[-1]).to(held.dtype))
        return held[:, span, :, width]

    def _places_in(self, layer: Tensor) -> Tensor:
        """[R x T, 2, heads] where among the vectors of a layer what is new is kept."""
        starts = torch.arange(0, layer[..., 0].numel(), layer.shape[3], device=layer.device).view(layer.shape[:3])
        return (starts[:, self._seen[0]].transpose(0, 1)[:, None] + self._positions[:, :, None, None]).flatten(0, 1)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, ...]:
        """Called by the attention of each layer of transformers with the new keys and values [R, heads, T, size]."""
        return self.keep(torch.stack([keys, values], 1).permute(0, 3, 1, 2, 4).flatten(0, 1), layer).unbind()

    def _fit(self) -> None:
        """Make the tensors large enough, with zeros: the unwritten is read under a mask, and 0 x NaN is NaN."""
        rows, columns = self._rows, -(-self._columns // _ROOM) * _ROOM
        self._columns = columns
        for layer, old in enumerate(self._layers):
            if old.shape[1] < rows or old.shape[3] < columns:
                self.replays.clear()
                height = old.shape[1] if old.shape[1] >= rows else max(rows, old.shape[1] * 3 // 2)
                self._layers[layer] = old.new_zeros((2, height, old.shape[2], columns, old.shape[4]))
                self._layers[layer][:, : old.shape[1], :, : old.shape[3]] = old

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            width = max(len(self._held[one]), len(self._held[other]))
            for tensor in self._layers:
                here, there = tensor[:, one, :, :width], tensor[:, other, :, :width]
                kept = here.clone()
                here.copy_(there)
                there.copy_(kept)
            self._held[one], self._held[other] = self._held[other], self._held[one]
            self._rested[one], self._rested[other] = self._rested[other], self._rested[one]


class LocalEngine:
    """Continuous batching over a transformers causal language model."""

    def __init__(self, model: PreTrainedModel, stop_ids: frozenset[int], precision: AbstractContextManager[object]):
        prepare(model)
        self.model = model
        self.version = 0
        self._stop_ids = stop_ids
        self._decoder = Decoder(model, isinstance(precision, torch.autocast)) if Decoder.fits(model) else None
        self._replays = self._decoder is not None and model.device.type == "cuda"
        self._precision = precision if self._decoder is None else nullcontext()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._waited = 0  # passes since somebody began to wait
        self._cache = _Cache(model.device)
        known = inspect.signature(type(model.get_decoder()).forward).parameters
        self._cache_named = "cache" if "cache" in known else "past_key_values"  # as older transformers have it
        self._driver: asyncio.Task[None] | None = None

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """The weights are the trainer's and already here; what was read with them before is forgotten.

        Replies under way go on with the tokens they have.
        """
        self.version = version
        if self._decoder is not None:
            self._decoder.load()
        self._cache.clear()
        self._waiting, self._running = [*self._running, *self._waiting], []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        luck = np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens).tolist()
        done: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(prompt_ids, sampling, done, luck, "".join(map(chr, prompt_ids))))
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
            self._waiting, self._running, self._cache = [], [], _Cache(self.model.device)
        finally:
            self.model.train(training)

    def _step(self) -> None:
        if self._running and self._replays:
            self._sample(0, [()] * len(self._running), self._replayed([one.tokens[-1] for one in self._running]))
        elif self._running:
            room = min(_AHEAD, _TOGETHER // len(self._running) - 1)
            guesses = [request.guess(room) for request in self._running]
            new = [[*request.tokens[-1:], *guess] for request, guess in zip(self._running, guesses, strict=True)]
            self._sample(0, guesses, self._read(0, new, every=True))
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
            prompts = [self._cache.admit(request.begun) for request in arrived]
            self._sample(first, [()] * len(arrived), self._read(first, prompts))

    def _first_readers(self) -> tuple[list[_Request], list[_Request]]:
        """Who reads a prompt now, and who waits until another has read what both begin with."""
        now: list[_Request] = []
        later: list[_Request] = []
        for request in self._waiting:
            prompt = request.begun
            worth = self._cache.find(prompt)[1] + _WORTH
            common = len(prompt) > worth and any(other.begun[:worth] == prompt[:worth] for other in now)
            (later if common else now).append(request)
        return now, later

    def _read(self, first: int, tokens: Sequence[Sequence[int]], every: bool = False) -> Tensor:
        """Read the next tokens of R rows from `first` on, N in all.

        Returns the logits [R, V] after the last of each row, or [N, V] after every one.
        """
        ids, positions, mask = self._cache.extend(first, tokens)
        lasts = torch.tensor([len(new) - 1 for new in tokens])
        if self._decoder is not None:
            return self._decoder.logits(ids, positions, mask, lasts, self._cache.keep, every)
        trunk = self.model.get_decoder()
        places = torch.arange(len(tokens)), lasts
        if every:
            rows, columns = (torch.arange(ids.shape[1]) <= lasts[:, None]).nonzero(as_tuple=True)
            places = rows, columns
        with nullcontext() if every else last_mlp_at(trunk, places):
            given = {"attention_mask": mask, "position_ids": positions, self._cache_named: self._cache}
            output = trunk(ids, **given, use_cache=True)
        return self.model.lm_head(output.last_hidden_state[places]).float()

    def _replayed(self, tokens: Sequence[int]) -> Tensor:
        """Read the next token of every row; returns the logits [R, V] after it."""
        ids, positions = self._cache.grow(tokens)
        if len(ids) not in self._cache.replays:
            self._cache.replays[len(ids)] = Replay(self._next, ids, positions, self.model.device)
        return self._cache.replays[len(ids)](ids, positions)[: len(tokens)]

    def _next(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The logits [R, V] after one more token [R, 1] of each of the first R rows."""
        assert self._decoder is not None
        mask = self._cache.aim(0, positions)
        return self._decoder.logits(ids, positions, mask, torch.zeros(len(ids)), self._cache.keep, every=True)

    def _sample(self, first: int, guesses: Sequence[Sequence[int]], logits: Tensor) -> None:
        """Sample what follows the last token of each row from `first` on, and its guesses as far as they come true.

        Logits are [N, V], one token a row more than is guessed. Each token is drawn as if nothing had been guessed.
        """
        requests = self._running[first : first + len(guesses)]
        drawn = [(one, ahead) for one, guess in zip(requests, guesses, strict=True) for ahead in range(len(guess) + 1)]
        luck = [one.luck[len(one.tokens) + ahead] for one, ahead in drawn]
        places = torch.tensor(luck, device=logits.device, dtype=torch.float64)
        tokens, logprobs = map(Tensor.tolist, sample(logits, [one.sampling for one, _ in drawn], places))
        start = 0
        for row, (request, guess) in enumerate(zip(requests, guesses, strict=True), first):
            stop = start + 1
            for guessed in guess:
                if tokens[stop - 1] != guessed or guessed in self._stop_ids:
                    break
                stop += 1
            request.add(tokens[start:stop], logprobs[start:stop], self.version)
            start += len(guess) + 1
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


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def sample(logits: Tensor, sampling: Sequence[Sampling], luck: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row [R] by inverting the cumulative distribution at `luck` [R] (uniform in [0, 1)).

    Also returns its log-prob [R] at the row's temperature under the whole distribution: what the trainer computes.
    Logits are [R, V]. At temperature 0 the likeliest token is taken, and scored at temperature 1.
    """
    temperatures = [s.temperature or 1.0 for s in sampling]
    if set(temperatures) != {1.0}:
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    shares = torch.softmax(logits, dim=-1)
    allowed = shares
    if any(s.top_k or s.top_p < 1 for s in sampling):
        allowed = torch.stack([_filter(row, s) for row, s in zip(shares, sampling, strict=True)])
    cumulative = allowed.cumsum(dim=-1, dtype=torch.float64)
    target = luck.double()[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    greedy = [row for row, s in enumerate(sampling) if s.temperature == 0]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(dim=-1)
    return tokens, shares.gather(1, tokens[:, None])[:, 0].log()


def _filter(shares: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [V] with all but the top k, and all beyond the nucleus of mass top_p, at zero."""
    ranked, order = shares.sort(descending=True)
    before = ranked.cumsum(dim=-1) - ranked
    out = before >= sampling.top_p  # the first token that reaches the mass is kept
    if sampling.top_k:
        out[sampling.top_k :] = True
    return shares.index_fill(0, order[out], 0)
