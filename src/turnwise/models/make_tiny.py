"""Makes our own models: small Qwen2 instruct models, by imitation of poor teachers.

A teacher knows what is right and does it so seldom that the model learns the language of its tasks (it reads, reasons
about what it sees, and answers in the format) and little of how to solve them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from turnwise.batch import Batch, pack
from turnwise.lines import Micro
from turnwise.models import arithmetic
from turnwise.policy import Policy
from turnwise.render import Renderer
from turnwise.seeds import derive
from turnwise.types import Action, Generation, Message, Observation, Segment, Turn
from turnwise.update import minibatches

# ChatML as Qwen2.5 has it, with tools in the system message and their answers in a turn of the user.
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "Tools:\n{% for tool in tools %}{{ tool.function.name }}("
    "{{ tool.function.parameters.properties.keys() | join(', ') }})\n{% endfor %}"
    'Call one like this: <tool_call>{"name": NAME, "arguments": {...}}</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}{% if not (tools and loop.first and message.role == 'system') %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "{% endif %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How Qwen2 splits text before it merges bytes: contractions, words, single digits, punctuation, white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LONGEST = 2**15  # tokens, as many as suites show; the texts that teach are far shorter
_PLANES, _LOOK = 6, 7.0  # of RoPE's planes, and the biases' size in each, with which a head looks at one token alone


@dataclass(frozen=True)
class Demonstration:
    """A turn of a teacher."""

    messages: Sequence[Message]
    reply: str
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Recipe:
    """How a model is made of what its teacher shows."""

    epochs: int = 3
    batch: int = 32  # turns an optimizer step
    lr: float = 1e-3
    vocabulary: int = 768
    width: int = 256
    layers: int = 3
    heads: int = 8
    seed: int = 0
    quiet: float = 1.0  # share of the usual size in which layers first add to what a token is
    look_back: int = 0  # heads of the first layer that begin by looking one, two, three... tokens back
    lead: int = 0  # demonstrations, the first so many, that are learned by themselves before the others


Say = Callable[[str], object]


def make_tiny(folder: Path, teacher: Any, recipe: Recipe, say: Say = print) -> None:
    """Write the model, its tokenizer and what it was made by into a Hugging Face folder.

    The teacher is a dataclass, whose fields are written down too, and `demonstrations(seed)` are what it shows.
    """
    demonstrations = teacher.demonstrations(recipe.seed)
    say(f"{len(demonstrations)} demonstrated turns")
    tokenizer = make_tokenizer(demonstrations, recipe.vocabulary)
    model = make_model(tokenizer, recipe)
    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {len(tokenizer)} tokens")
    policy = Policy(model, critic="none", reference=False, precision=arithmetic("auto", model.device))
    renderer = Renderer(tokenizer)
    segments = [as_segment(one, renderer) for one in demonstrations]
    parts = [part for part in (segments[: recipe.lead], segments[recipe.lead :]) if part]
    imitate(policy, [pack(part) for part in parts], recipe, say)
    model.to(torch.bfloat16).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(folder)
    made_by = {"teacher": type(teacher).__name__, **asdict(teacher), **asdict(recipe)}
    (folder / "made_by.json").write_text(json.dumps(made_by, indent=1) + "\n")


def make_tokenizer(demonstrations: Sequence[Demonstration], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of our own, split as Qwen2 splits, with the special tokens and the template of ChatML.

    A digit and the space before it are one token: prompts are shorter, and a number follows its noun at once. It must
    be an added one, since transformers opens every Qwen2 model with Qwen2's split, whatever its tokenizer.json says.
    """
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
    bpe.add_tokens([AddedToken(f" {digit}", normalized=False) for digit in range(10)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=_LONGEST
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
        initializer_range=recipe.width**-0.5,  # with Qwen2's own 0.02, attention begins flat and stays so for long
        max_position_embeddings=_LONGEST,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    model = Qwen2ForCausalLM(config)
    layers: Any = model.model.layers
    with torch.no_grad():
        for layer in layers:
            layer.self_attn.o_proj.weight *= recipe.quiet
            layer.mlp.down_proj.weight *= recipe.quiet
    if recipe.look_back:
        look_back(model, recipe.look_back)
    return model


def look_back(model: Qwen2ForCausalLM, heads: int) -> None:
    """The n-th head of the first layer begins by looking n tokens back, whatever stands there.

    Who copies what followed a name must first know of each token what stands before it (Olsson et al., "In-context
    Learning and Induction Heads", 2022). A bias of the keys points into RoPE's fastest planes, and that of a head's
    queries into the same, turned back by its distance.
    """
    attention: Any = model.model.layers[0].self_attn
    half = attention.head_dim // 2
    config: Any = model.config
    angles = config.rope_parameters["rope_theta"] ** -(torch.arange(_PLANES) / half)
    keys, queries = (linear.bias.view(-1, 2, half) for linear in (attention.k_proj, attention.q_proj))
    if heads > len(queries):
        raise ValueError(f"look_back is {heads}, but a layer has {len(queries)} heads; take no more than those")
    with torch.no_grad():
        keys[:, 0, :_PLANES] = _LOOK
        for back, query in enumerate(queries[:heads], start=1):
            query[0, :_PLANES] = _LOOK * torch.cos(back * angles)
            query[1, :_PLANES] = -_LOOK * torch.sin(back * angles)


def as_segment(one: Demonstration, renderer: Renderer) -> Segment:
    """A demonstrated turn as if it had been sampled."""
    reply = tuple(renderer.tokenizer.encode(one.reply + "<|im_end|>", add_special_tokens=False))
    generation = Generation(reply, (0.0,) * len(reply), "stop", 0)
    turn = Turn(
        Observation(""),
        renderer.prompt(one.messages, one.tools),
        generation,
        Action("", "valid", "", "", 0),
        0,
        0.0,
        "",
        "",
        "",
    )
    return Segment(0, 0, "", 0, (turn,), "terminated", (), None)


def imitate(policy: Policy, batches: Sequence[Batch], recipe: Recipe, say: Say) -> None:
    """Supervised fine-tuning on the replies alone, of one batch after the other in each epoch."""
    parameters = policy.actor_parameters()
    steps = recipe.epochs * sum(math.ceil(len(batch.trained_rows) / recipe.batch) for batch in batches)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=steps, pct_start=0.1)
    step = 0
    for epoch, batch in product(range(recipe.epochs), batches):
        for rows in minibatches(batch.trained_rows, batch, recipe.batch, derive(recipe.seed, epoch)):
            tokens = int(batch.sampled_per_row[rows].sum())

            def learn(micro: Micro, tokens: int = tokens) -> tuple[Tensor, float]:
                loss = -policy(micro).logprobs.sum() / tokens
                return loss, loss.item()

            micros = list(batch.micros(rows, 2048, finals=False, lanes=policy.lanes.count))
            total = sum(policy.backward("actor", learn, micros))
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % 50 == 0:
                say(f"step {step}/{steps}: {total:.3f} nats a token")
