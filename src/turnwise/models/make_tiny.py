"""Makes the embedded model: a small Qwen2 instruct model, from random weights, by imitation of a poor teacher.

The teacher knows the expert's move but mostly plays at random, so that the model learns the language of the tasks
(it reads, reasons about what it sees, and answers in the format) and little of how to solve them.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from turnwise.batch import Batch, pack
from turnwise.envs.babyai import BabyAIText
from turnwise.memory.window import Window
from turnwise.models import arithmetic
from turnwise.parse import ThinkAct
from turnwise.policy import Policy
from turnwise.render import Renderer
from turnwise.seeds import derive, episode_seed
from turnwise.types import Action, Generation, Message, Observation, Segment, Turn
from turnwise.update import minibatches

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How Qwen2 splits text before it merges bytes: contractions, words, single digits, punctuation, white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

COLOURS = ("blue", "purple", "green", "yellow", "red", "grey")


@dataclass(frozen=True)
class Recipe:
    """What the embedded model is made of."""

    # The teacher plays missions of so many colours (in the order of COLOURS, by the first one that the mission names),
    # guessing now and then, and guesses at all others: so few and so often that play starts below the zero-shot results
    # of Qwen2.5-3B-Instruct in the Verlog report (table 3).
    known: dict[str, int] = field(
        default_factory=lambda: {"goto": 4, "pickup": 2, "open": 1, "putnext": 2, "pick_up_seq_go_to": 1}
    )
    randomness: dict[str, float] = field(  # share of guesses where the colour is known
        default_factory=lambda: {"goto": 0.4, "pickup": 0.6, "open": 0.8, "putnext": 0.7, "pick_up_seq_go_to": 0.8}
    )
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it
    turns: int = 4_000  # demonstrated turns a task
    length: int = 32  # turns of a level after which the teacher begins another: many levels teach how to read
    epochs: int = 2
    batch: int = 64  # turns an optimizer step
    lr: float = 2e-3
    vocabulary: int = 768
    width: int = 256
    layers: int = 3
    heads: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Demonstration:
    messages: list[Message]
    reply: str


Say = Callable[[str], object]


def make_tiny(folder: Path, recipe: Recipe, say: Say = print) -> None:
    """Write the model, its tokenizer and the recipe it was made by into a Hugging Face folder."""
    demonstrations = [one for task in recipe.randomness for one in demonstrate(task, recipe)]
    say(f"{len(demonstrations)} demonstrated turns")
    tokenizer = make_tokenizer(demonstrations, recipe.vocabulary)
    model = make_model(tokenizer, recipe)
    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {len(tokenizer)} tokens")
    policy = Policy(model, critic="shared", reference=False, precision=arithmetic("auto", model.device))
    renderer = Renderer(tokenizer)
    imitate(policy, pack([as_segment(one, renderer) for one in demonstrations]), recipe, say)
    model.to(torch.bfloat16).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(folder)
    (folder / "made_by.json").write_text(json.dumps(recipe.__dict__, indent=1) + "\n")


def demonstrate(task: str, recipe: Recipe) -> Iterator[Demonstration]:
    """Turns of the poor teacher, each with the prompt that a window memory of 0 to 2 turns shows."""
    environment = BabyAIText(task=task)
    parser = ThinkAct(environment.actions, environment.default_action, cue=recipe.cue)
    luck = random.Random(derive("teacher", recipe.seed, task))
    episode = made = 0
    while made < recipe.turns:
        seen, _ = environment.reset(seed=episode_seed("demo", recipe.seed, task, episode))
        episode += 1
        past: list[Turn] = []
        memory = Window(luck.choice((0, 1, 1, 1, 2)))
        ended = False
        share = recipe.randomness[task] if _knows(seen["instructions"], recipe.known[task]) else 1.0
        while not ended and len(past) < recipe.length and made < recipe.turns:
            observation = Observation(seen["text"], parser.cue, seen["instructions"])
            thought = environment.thought()
            expert = environment.expert()
            action = luck.choice(environment.actions) if luck.random() < share else expert
            reply = parser.format(thought, action)
            yield Demonstration(window_messages(memory, past, observation), reply)
            made += 1
            past.append(_played(observation, reply, parser.parse(reply), parser.format("", action)))
            seen, _, terminated, truncated, _ = environment.step(action)
            ended = terminated or truncated


def _knows(instructions: str, known: int) -> bool:
    """Whether the first colour of the mission, which closes the instructions, is one that the teacher knows."""
    named = [word for word in instructions.rpartition(":")[2].split() if word in COLOURS]
    return bool(named) and named[0] in COLOURS[:known]


def window_messages(memory: Window, past: Sequence[Turn], observation: Observation) -> list[Message]:
    """What the memory shows, without the ids that nobody sampled."""

    async def nobody(_: list[Message]) -> str:
        raise AssertionError("a window asks nothing")

    prompt = memory.prompt(past[len(past) - memory.turns :] if memory.turns else (), len(past), observation, nobody)
    try:
        prompt.send(None)
    except StopIteration as done:
        return [{"role": message["role"], "content": message["content"]} for message in done.value]
    raise AssertionError("a window waits for nothing")


def _played(observation: Observation, reply: str, action: Action, bare: str) -> Turn:
    return Turn(observation, (), Generation((), (), "stop", 0), action, 0, 0.0, reply, reply, bare)


def make_tokenizer(demonstrations: Sequence[Demonstration], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of our own, split as Qwen2 splits, with the special tokens and the template of ChatML."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    texts = ("\n".join([*(m["role"] + "\n" + m["content"] for m in d.messages), d.reply]) for d in demonstrations)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Qwen2ForCausalLM:
    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.width * 5 // 2,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads // 2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    return Qwen2ForCausalLM(config)


def as_segment(one: Demonstration, renderer: Renderer) -> Segment:
    """A demonstrated turn as if it had been sampled."""
    reply = tuple(renderer.tokenizer.encode(one.reply + "<|im_end|>", add_special_tokens=False))
    generation = Generation(reply, (0.0,) * len(reply), "stop", 0)
    turn = Turn(Observation(""), renderer.prompt(one.messages), generation, None, 0, 0.0, "", "", "")
    return Segment(0, 0, "", 0, (turn,), "terminated", (), None)


def imitate(policy: Policy, batch: Batch, recipe: Recipe, say: Say) -> None:
    """Supervised fine-tuning on the replies alone."""
    parameters = policy.actor_parameters()
    steps = recipe.epochs * math.ceil(len(batch.trained_rows) / recipe.batch)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=steps, pct_start=0.1)
    step = 0
    for epoch in range(recipe.epochs):
        for rows in minibatches(batch.trained_rows, batch, recipe.batch, derive(recipe.seed, epoch)):
            tokens = int(batch.sampled_per_row[rows].sum())
            total = 0.0
            for micro in batch.micros(rows, 2048, finals=False):
                loss = -policy(micro).logprobs.sum() / tokens
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % 50 == 0:
                say(f"step {step}/{steps}: {total:.3f} nats a token")
