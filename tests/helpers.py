"""Makers of records by hand, and small stand-ins for what plugs in: a tokenizer, a model, an engine, an environment."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from turnwise.batch import Streams, pack
from turnwise.config import Config
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.types import Action, Generation, Observation, Outcome, Sampling, Segment, Turn


def turn(
    prompt: Iterable[int],
    sampled: Iterable[int],
    reward: float = 0.0,
    *,
    status: Any = "valid",
    said: str = "go",
    action_tokens: int = 0,
    of_memory: bool = False,
    finish: Any = "stop",
) -> Turn:
    """A turn of which only the ids and the reward matter. The log-prob of id 5 is -0.05."""
    ids = tuple(sampled)
    action = None if of_memory else Action("go", status, said, "", 0)
    generation = Generation(ids, tuple(-id / 100 for id in ids), finish, 0)
    return Turn(Observation(""), tuple(prompt), generation, action, action_tokens, reward, "", "", "")


def segment(
    *turns: Turn,
    end: Any = "terminated",
    final: Iterable[int] = (0,),
    slot: int = 0,
    episode: int = 0,
    task: str = "goto",
    seed: int = 0,
    success: bool | None = None,
) -> Segment:
    """A segment; `final` is its next prompt, and is left out where it terminated."""
    acted = sum(not one.of_memory for one in turns)
    outcome = None if end == "cut" else Outcome(success, sum(one.reward for one in turns), acted, None)
    return Segment(slot, episode, task, seed, turns, end, () if end == "terminated" else tuple(final), outcome)


def streams_of(
    segments: Sequence[Segment],
    values: Sequence[float],
    bootstraps: Sequence[float],
    rewards: Sequence[float] | None = None,
) -> Streams:
    """What an estimator sees of these segments; `rewards` replaces those of the turns, one number a token."""
    batch = pack(segments)
    return Streams(
        segments,
        batch.rewards if rewards is None else torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(bootstraps, dtype=torch.float64),
        batch.step_ends,
        batch.segment_ends,
    )


# -- a tokenizer and a model, made here

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(
    template: str | None = CHATML,
    end: str = "<|im_end|>",
    special: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    merges: Sequence[str] = (),
) -> Any:  # a PreTrainedTokenizerFast, most of whose answers are declared as unions
    """A token a byte, one for each merge ("a b" makes "ab"), and the special tokens after them."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in pairs)]
    bytewise = Tokenizer(models.BPE(vocab={word: id for id, word in enumerate(words)}, merges=pairs))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore
    bytewise.decoder = decoders.ByteLevel()  # type: ignore
    bytewise.add_special_tokens(["<|endoftext|>", *special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, eos_token=end, pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.chat_template = template
    return tokenizer


def make_model(folder: Path) -> None:
    """Write a Qwen2 of random weights, large enough that its replies depend on what it reads, and end now and then."""
    tokenizer = make_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[end] *= 3  # likely now and then
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# -- what plays

Reply = Callable[[str, int], str]


class Scripted:
    """An engine that says what it is told to say: `reply` maps the prompt's text and its number to the reply.

    A reply that ends in "..." was stopped by the length limit, any other by the end token.
    """

    def __init__(self, renderer: Renderer, reply: Reply | Sequence[str] = ("ACTION: add",)):
        self.renderer = renderer
        self.reply: Reply = reply if callable(reply) else lambda _, number: reply[number % len(reply)]
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        tokenizer = self.renderer.tokenizer
        prompt = tokenizer.decode(list(prompt_ids))
        assert isinstance(prompt, str)
        text = self.reply(prompt, len(self.prompts))
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        await asyncio.sleep(0)
        stopped = not text.endswith("...")
        ids = tokenizer.encode(text + stopped * "<|im_end|>", add_special_tokens=False)
        return Generation(tuple(ids), tuple(-id / 1000 for id in ids), "stop" if stopped else "length", 0)

    def load(self, weights: Any, version: int) -> None:
        raise AssertionError("nothing is trained here")


@dataclass(frozen=True)
class AnyText:
    """A parser to which every reply is a legal action."""

    actions: Sequence[str] = ()
    default: str = ""
    cue: str = ""

    def parse(self, text: str) -> Action:
        return Action(text, "valid", text, "", 0)

    def format(self, thought: str, action: str) -> str:
        return action


class Counter(gymnasium.Env[Any, str]):
    """Counts how often it was told to add. Every observation names the episode, so that none is taken for another's."""

    actions = ("add", "wait", "win", "lose")
    default_action = "wait"
    action_space = gymnasium.spaces.Text(1000)

    def __init__(self, limit: int = 1_000_000, goal: int = 1_000_000, wordy: int = 0):
        self.limit, self.goal, self.wordy = limit, goal, wordy

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.name, self.count, self.steps = f"E{seed % 100_000}", 0, 0
        return self._observe(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.count += action == "add"
        won = action == "win" or self.count >= self.goal
        return self._observe(), 0.25, won or action == "lose", self.steps >= self.limit, {"success": won}

    def translate(self, said: str) -> str | None:
        return "add" if said == "increase" else None

    def _observe(self) -> Any:
        return {
            "text": f"{self.name} step {self.steps} count {self.count}" + "." * self.wordy,
            "cue": f"Now {self.steps}?",
            "instructions": f"Count in {self.name}.",
        }


class AnyCounter(Counter):
    """The same, to which any text is legal; what it does not know is a step without effect."""

    actions = ()
    default_action = ""


def play_config(env: str = "helpers:Counter", **tree: Any) -> Config:
    """A configuration of small batches; `environment`, `rollout` and so on are merged into it."""
    environment = {"id": env, "workers": "inline", **tree.pop("environment", {})}
    rollout = {"n_env": 2, "max_prompt_tokens": 4000, "max_reply_tokens": 12, **tree.pop("rollout", {})}
    if "episodes" not in rollout:
        rollout.setdefault("e_len", 3)
    update = {"minibatch": 1, **tree.pop("update", {})}
    return parse_config({"environment": environment, "rollout": rollout, "update": update, **tree})


class Ladder(gymnasium.Env[Any, str]):
    """Four rungs, and a level's own number of turns to climb them; some levels break, when `fragile`."""

    actions = ("up", "wait")
    default_action = "wait"
    action_space = gymnasium.spaces.Text(100)

    def __init__(self, partial: bool = False, fragile: bool = False):
        self.partial, self.fragile = partial, fragile

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        self.height = self.steps = 0
        self.limit, self.breaks = 3 + seed % 4, self.fragile and seed % 5 == 1
        return "You stand on the ground.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.height += action == "up"
        if self.breaks and self.steps == 2:
            raise RuntimeError("the ladder broke")
        up = self.height == 4
        told = {"success": None, "progression": self.height / 4} if self.partial else {"success": up}
        return f"You stand on rung {self.height}.", float(up), up, self.steps >= self.limit, told

    def expert(self) -> str:
        return "up"
