"""Opening language models: from a folder, a hub id, or the one that ships."""

import hashlib
import json
import os
import platform
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from turnwise.config import ModelConfig, RolloutConfig
from turnwise.cores import cores

EMBEDDED = {name: Path(__file__).parent / name for name in ("tiny", "tiny-games", "tiny-tools")}
_CHOICES = f"{', '.join(EMBEDDED)}, or the id of a model on the Hugging Face hub"


def locate(path: str) -> str:
    """An embedded model by its name; everything else is a folder, in which ~ is the home, or a hub id."""
    return str(EMBEDDED[path]) if path in EMBEDDED else os.path.expanduser(path)


def open_model(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with fp32 weights on its device, and its tokenizer. A mistake is a ValueError."""
    logging.disable_progress_bar()
    torch.set_num_threads(min(torch.get_num_threads(), cores()))
    path = locate(config.path)
    if path.startswith(("/", ".")) and not Path(path).is_dir():
        raise ValueError(f"model.path is {config.path!r}, and there is no such folder; give one, or {_CHOICES}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        opened: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True, output_loading_info=True
        )
        model, loaded = opened
        if missing := sorted(loaded["missing_keys"]):  # which transformers would draw at random
            raise ValueError(f"{len(missing)} of its weights are not there, such as {missing[0]}")
        if not tokenizer.encode("a", add_special_tokens=False):  # such a one is made where tokenizer.json is missing
            raise ValueError("its tokenizer knows no letters")
        if len(tokenizer) > (read := model.get_input_embeddings().num_embeddings):
            raise ValueError(f"its tokenizer has {len(tokenizer)} tokens, and the model reads no more than {read}")
    except Exception as error:  # of a damaged file come errors of any kind
        if (Path(path) / "model" / "config.json").is_file():
            raise ValueError(
                f"model.path is {config.path!r}, the folder of a run; did you mean {str(Path(path) / 'model')!r}?"
            ) from error
        raise ValueError(
            f"model.path is {config.path!r}, which cannot be opened ({' '.join(str(error).split()):.200}); give "
            f"a folder with config.json, model.safetensors and tokenizer.json, or {_CHOICES}"
        ) from error
    torch.nn.Module.to(model, pick_device(config.device))
    return model.eval(), tokenizer


def ends_of(model: PreTrainedModel) -> list[int]:
    """The ids with which its replies end, by its own generation_config.json."""
    ids = model.generation_config.eos_token_id if model.generation_config else None
    return [] if ids is None else [ids] if isinstance(ids, int) else [*ids]


def identity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Tells a model, as it was opened, and its tokenizer from others: what one has learned is another's gibberish."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([sorted(tokenizer.get_vocab().items()), str(tokenizer.chat_template)]).encode())
    for name, weight in model.named_parameters():  # a sample of each: reading all of a large model takes long
        digest.update(name.encode() + weight.detach().flatten()[:64].cpu().numpy().tobytes())
    return digest.hexdigest()


def refuse_too_long(model: PreTrainedModel, rollout: RolloutConfig) -> None:
    """A ValueError where prompts and replies could be longer than what the model was made for."""
    most, asked = getattr(model.config, "max_position_embeddings", None), rollout.max_prompt_tokens
    if most is not None and asked + rollout.max_reply_tokens > most:
        raise ValueError(
            f"rollout.max_prompt_tokens={asked} and rollout.max_reply_tokens={rollout.max_reply_tokens} are more than "
            f"the {most} tokens that {model.config.name_or_path!r} can read; lower one of them"
        )


def refuse_other(known: str, found: str, path: str, made: Path) -> None:
    """A ValueError where the model at `path` is not the one that `made`, a checkpoint, was made from."""
    if known != found:
        raise ValueError(
            f"model.path is {path!r}, whose weights or tokenizer are not those that {made} was made from; give the "
            "model that it was, or begin a new run"
        )


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"  # an Apple GPU is untried
    try:
        there = torch.empty(1, device=name)
        there.item()  # which a device that holds no numbers, such as meta, cannot tell
        if there.is_cuda:
            torch.cuda.set_device(there.device)  # where passes are recorded
        return there.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"model.device is {name!r}, which this machine does not have; use auto, cpu, or cuda where there is a GPU"
        ) from error


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context for forward passes: bf16 with fp32 weights, or nothing."""
    bf16 = precision_on(device, precision) == "bf16"
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


def precision_on(device: torch.device, precision: str) -> str:
    """In what is computed there: what is asked for, or where that is "auto" the faster one."""
    return ("bf16" if _fast_bf16(device) else "fp32") if precision == "auto" else precision


def machine(device: torch.device, precision: str) -> dict[str, Any]:
    """What computes, as far as it decides the last digits of what comes out."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    threads = torch.get_num_threads()
    return {"device": f"{device.type}, {name}", "precision": precision_on(device, precision), "threads": threads}


def _fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products outrun fp32 ones: on AMD with AVX-512, and on Intel with tile matrices alone."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    processor = getattr(torch.cpu, "get_capabilities", dict)()  # which PyTorch before 2.10 cannot say
    amd = processor.get("cpu_name", "").startswith("AMD") and processor.get("avx512_bf16", False)
    return amd or torch.cpu._is_amx_tile_supported()
