"""Messages to token ids through the model's own chat template, and back to text.

What was sampled is never tokenised again: its ids are spliced into the rendered conversation.
"""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from turnwise.types import Message

# Private-use characters: no template strips them, and no tokeniser's chat markup contains them.
_PRIVATE = range(0xE000, 0xF900)


class Renderer:
    """The chat template of one tokenizer.

    A conversation is rendered as text with a hole for each sampled reply, and the pieces between the holes are
    tokenised one by one. A piece reads the same in every later prompt, so a longer conversation extends the ids of
    a shorter one exactly.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if not tokenizer.chat_template:
            raise ValueError(
                f"model: {tokenizer.name_or_path!r} has no chat template; choose an instruct model, "
                "or add a chat_template.jinja to its folder"
            )
        self.tokenizer = tokenizer
        self._encode = lru_cache(maxsize=4096)(self._tokenise)
        self._turn_end, self._turn_end_id = self._find_turn_end()
        ends = (tokenizer.eos_token_id, self._turn_end_id)
        self.stop_ids = frozenset(token for token in ends if isinstance(token, int))

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of the conversation, up to where the model's next reply begins."""
        replies = [message["token_ids"] for message in messages if "token_ids" in message]
        first, *pieces = self._pieces(messages, generate=True)
        ids = list(self._encode(first))
        for sampled, piece in zip(replies, pieces, strict=True):
            ids += sampled
            if sampled[-1] == self._turn_end_id:
                piece = piece.removeprefix(self._turn_end)
            ids += self._encode(piece)
        return tuple(ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """The sampled text, without the markup of the template."""
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def tokens_from(self, token_ids: Sequence[int], start: int) -> int:
        """How many of the last tokens spell the text from character `start` on (a token astride counts)."""
        # From the end, since a text can become shorter by a token: a character spelt byte by byte reads as several.
        known = len(token_ids)
        while known and len(self.text(token_ids[:known])) > start:
            known -= 1
        return len(token_ids) - known

    def _pieces(self, messages: Sequence[Message], generate: bool) -> list[str]:
        shown = "".join(message["content"] for message in messages)
        mark = next(letter for letter in map(chr, _PRIVATE) if letter not in shown)  # so no text looks like a hole
        holes = (f"{mark}{number}{mark}" for number in range(len(messages)))
        plain = [
            {"role": message["role"], "content": next(holes) if "token_ids" in message else message["content"]}
            for message in messages
        ]
        text = self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=generate)
        assert isinstance(text, str)
        pieces = []
        for number in range(sum("token_ids" in message for message in messages)):
            piece, found, text = text.partition(f"{mark}{number}{mark}")
            if not found:
                raise ValueError(
                    f"model: the chat template of {self.tokenizer.name_or_path!r} drops or changes past replies, "
                    "so this memory cannot show them; use a memory that shows none, such as window with turns=0"
                )
            pieces.append(piece)
        return [*pieces, text]

    def _find_turn_end(self) -> tuple[str, int | None]:
        """The special token with which a reply ends, where the template has one, and the text as far as it reaches."""
        ask: Message = {"role": "user", "content": "?"}
        try:
            after = self._pieces([ask, {"role": "assistant", "content": "", "token_ids": ()}], generate=False)[-1]
        except ValueError:  # a template that shows no replies serves a memory that shows none
            return "", None
        bare = after.lstrip()
        added = self.tokenizer.added_tokens_decoder  # those without a name of their own are special too
        ends = [number for number, token in added.items() if token.special and bare.startswith(token.content)]
        if not ends:
            return "", None
        longest = max(ends, key=lambda number: len(added[number].content))
        return after[: len(after) - len(bare)] + added[longest].content, longest

    def _tokenise(self, text: str) -> tuple[int, ...]:
        # Not verbose: a long text is measured against the limit of the recipe, with a sentence of its own.
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else ()
