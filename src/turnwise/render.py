"""Messages to token ids through the model's own chat template, and back to text.

What was sampled is never tokenised again: its ids are spliced into the rendered conversation.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from turnwise.chat_template import SEAM, ChatTemplate, Sequel, Tools
from turnwise.history import Exact, Inference
from turnwise.remembered import Remembered
from turnwise.surrogates import encodable
from turnwise.types import Message

_TAIL = 32  # tokens, of which the marks of templates never take more
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # as many as three of them stand for a character without its last byte


class Renderer:
    """The chat template of one tokenizer.

    The pieces of text between sampled replies are tokenised one by one. `history` says how replies are shown in later
    prompts: "exact" keeps them as they were sampled, so that a longer conversation extends the ids of a shorter one;
    "template" lets the template have its way, as in production, such as leaving out old reasoning. `template_kwargs` is
    what the template asks besides messages and tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        history: Literal["exact", "template"] = "exact",
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        ends: Iterable[int] = (),
    ):
        """`ends` are further ids with which the model ends its replies, beside those that the template writes there."""
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, template_kwargs)
        self._exact = Exact(self._template)
        self._inference = Inference(self._template, self.text)
        ways = {"exact": self._exact, "template": self._inference}
        if history not in ways:
            raise ValueError(f"history is {history!r}; choose exact or template")
        self._show = ways[history]
        self._encode = Remembered(self._packed, 2**25)
        self._encode_head = Remembered(self._packed, 2**23)  # a short memory makes a new one in every turn
        self._vocabulary = lru_cache(maxsize=1)(tokenizer.get_vocab)  # which some make anew each time
        self._length = lru_cache(maxsize=None)(lambda token: len(self.text([token])))
        known = (*self._template.ends, tokenizer.eos_token_id, *ends)
        self.stop_ids = frozenset(token for token in known if isinstance(token, int))

    def prompt(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[int, ...]:
        """The ids of the conversation, up to where the model's next reply begins.

        `tools` are shown to the model, each in the nested form of OpenAI: {"type": "function", "function": {...}}.
        Raises ValueError where the template refuses the conversation.
        """
        if tools and not self._template.shows_tools:
            raise ValueError(
                f"model: the chat template of {self.tokenizer.name_or_path!r} shows no tools; "
                "describe them in the system message, and give none to the renderer"
            )
        head, exchanges = self._show(messages, tools)
        ids = list(self._encode_head(head))
        for sampled, sequel in exchanges:
            ids += sampled
            ids += self._context(sampled, sequel)
        return tuple(ids)

    def end(self, reply: Message) -> tuple[int, ...]:
        """What the template writes after the last reply of a conversation, the sampled ids apart."""
        return tuple(self._context(reply.get("token_ids", ()), self._exact.sequel(reply, opened=False)))

    def whole(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[int, ...]:
        """What the template alone makes of a conversation, no sampled ids in it.

        Where the last message is no reply, the next one is opened.
        """
        opened = messages[-1]["role"] != "assistant"
        return self._tokenise(self._template.write(self._inference.plain(messages), tools, opened))

    def text(self, token_ids: Sequence[int]) -> str:
        """The sampled text, without the markup of the template."""
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a piece of text by itself."""
        return tuple(self._encode(text))

    def markup(self, texts: Sequence[str]) -> dict[int, str]:
        """Those of the texts that are one token each, by their ids."""
        known = self._vocabulary()
        return {known[text]: text for text in texts if text in known}

    def ends_with(self, token_ids: Sequence[int], text: str) -> bool:
        """Whether the ids spell the text at their end, white space aside; special tokens count as spelt."""
        tail = self.tokenizer.decode(list(token_ids[-_TAIL:]), clean_up_tokenization_spaces=False)
        assert isinstance(tail, str)
        return tail.rstrip().endswith(text)

    def tokens_from(self, token_ids: Sequence[int], start: int) -> int:
        """How many of the last tokens spell the text from character `start` on (a token astride counts)."""

        reach = [*accumulate(map(self._length, token_ids))]
        known = bisect_right(reach, start)  # before it, if a text were as long as its tokens are one by one
        while len(self.text(token_ids[:known])) > start:
            known -= 1
        for more in range(known + 1, len(token_ids) + 1):
            text = self.text(token_ids[:more])
            if len(text) <= start:
                known = more
            elif not text.endswith(_BROKEN):  # which the next token may make shorter
                break
        return len(token_ids) - known

    def _context(self, sampled: Sequence[int], sequel: Sequel) -> Sequence[int]:
        """The text after a reply, which the template closes if the model did not."""
        if sampled[-1] == sequel.close_id or sampled[-1] in self._template.ends:
            return self._encode(sequel.rest)
        text = sequel.close + sequel.rest
        if sampled[-1] in self.stop_ids:  # some models end by the token with which the next turn begins
            text = text.removeprefix(str(self.tokenizer.convert_ids_to_tokens(sampled[-1])))
        return self._encode(text)

    def _packed(self, text: str) -> "array[int]":
        """In a tenth of the room that a tuple takes: tens of thousands are kept."""
        return array("i", self._tokenise(text))

    def _tokenise(self, text: str) -> tuple[int, ...]:
        # Not verbose: a long text is measured against the limit of the recipe, with a sentence of its own.
        pieces = [piece for piece in encodable(text).split(SEAM) if piece]
        ids = (self.tokenizer.encode(piece, add_special_tokens=False, verbose=False) for piece in pieces)
        return tuple(chain.from_iterable(ids))
