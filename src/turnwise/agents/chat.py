"""A conversation with the model, each reply of which is a turn."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.failures import EpisodeFailure
from turnwise.figures import finite
from turnwise.protocols import Codec, Session
from turnwise.render import Renderer
from turnwise.tokencheck import Mode, check_tokens
from turnwise.toolcalls import FORMATS, ParsedReply, ToolCall, ToolFormat, decode_reply
from turnwise.tools import Shorten
from turnwise.tools.shorten import MARK
from turnwise.types import Action, Generation, Message, MessageCall, Observation, Sample, Turn

_THINK = "<think>"


def count_figures(session: Session, group: str, figures: Mapping[str, Any]) -> None:
    """Tell of what a tool or a user counts; what is no finite number is left out."""
    for name, value in figures.items():
        if (number := finite(value)) is not None:
            session.count(f"{group}/{name}", number)


def sample_of(session: Session) -> Sample:
    if session.sample is None:
        raise ValueError("the agent answers the prompts of a data set, and there is none; name one in data.train")
    return session.sample


class PromptTooLong(EpisodeFailure):
    """The opening of a conversation is over the limit."""

    def __init__(self, session: Session, prompt: tuple[int, ...], limit: int):
        super().__init__(
            f"rollout.max_prompt_tokens is {limit}, but the prompt of {session.name} takes {len(prompt)} "
            "tokens; raise it, or leave the sample out"
        )
        self.prompt = prompt


class Chat:
    """Messages so far; what the model says is added to them, with the ids that it sampled."""

    def __init__(
        self,
        session: Session,
        codec: Codec,
        messages: Sequence[Message],
        limit: int,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_format: ToolFormat = FORMATS["hermes"],
        seen: int = 0,
    ):
        """`limit` is that of a prompt, in tokens. `tools`, in OpenAI's form, are shown to the model; without any, what
        looks like a call is content. Of the messages the first `seen` have been shown, or said, in earlier turns.
        """
        self._messages = list(messages)
        self._said: dict[int, str] = {}  # what replies say whose marks of reasoning hold none, by their places
        self.prompt = self._row = codec.prompt(messages, tools)  # the row ends with the newest reply, or its answers
        if len(self.prompt) > limit:
            raise PromptTooLong(session, self.prompt, limit)
        self._session = session
        self._codec = codec
        self._limit = limit
        self._tools = tools
        self._parameters = {one["function"]["name"]: one["function"].get("parameters", {}) for one in tools}
        self._format = tool_format
        self._markup = codec.markup(tool_format.markup)
        self._length = 0  # of the row that ends with the newest reply
        self._replies: list[str] = []
        self._seen = seen
        self.generation: Generation | None = None  # the newest reply as it was sampled

    @property
    def messages(self) -> list[Message]:
        """As tools, users and scorers read them."""
        return [
            {**message, "content": self._said.get(place, message["content"])}
            for place, message in enumerate(self._messages)
        ]

    @property
    def newest(self) -> Message:
        """The last message, as later prompts show it."""
        return self._messages[-1]

    @property
    def text(self) -> str:
        """All that was sampled, and nothing that was shown."""
        return "\n".join(self._replies)

    @property
    def fits(self) -> bool:
        """Whether the next prompt is within the limit."""
        return len(self.prompt) <= self._limit

    @property
    def final_prompt(self) -> tuple[int, ...]:
        """The next prompt, which nobody answers: of what comes after the newest reply only what the limit allows."""
        return self.held(self.prompt)

    def held(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The same of any prompt that goes on from here."""
        return prompt[: max(self._limit, self._length + 1)]

    async def reply(self) -> ParsedReply:
        """Ask the model, and record the turn; what it earns is told to the session afterwards."""
        observation = Observation("\n".join(message["content"] for message in self._messages[self._seen :]))
        generation = await self._session.generate(self.prompt)
        text = self._codec.text(generation.token_ids)
        parsed = self._read(generation)
        action = _action(text, parsed)
        tokens = self._codec.tokens_from(generation.token_ids, action.start)
        self._session.record(Turn(observation, self.prompt, generation, action, tokens, 0.0, text, text, text))
        self._session.write(f"{observation.text}\n>> {text}")
        self._replies.append(text)
        self.generation = generation
        self._seen = len(self._messages) + 1
        if not parsed.reasoning and parsed.content != text.strip():
            self._said[len(self._messages)] = parsed.content
        row = (*self.prompt, *generation.token_ids)
        self._extend(self._message(text, generation, parsed))
        self._row, self._length = row, len(row)
        return parsed

    def check(self, mode: Mode) -> None:
        """Count whether the conversation reads otherwise than the template alone would write it, and by how much."""
        if isinstance(self._codec, Renderer) and mode != "disable":
            found = check_tokens(self._codec, self._messages, self._row, self._tools, mode)
            self._session.count("tokenization/mismatch", found.differs)
            self._session.count("tokenization/mismatch_characters", found.characters)
            if found.differs:
                self._session.write(f"(tokenization: {found.message})")

    def say(self, text: str) -> None:
        """Add what a user says."""
        self._extend({"role": "user", "content": text})

    def answer(self, calls: Sequence[ToolCall], answers: Sequence[str]) -> None:
        """Add what tools answered to the calls of the newest reply, cut where the next prompt would be too long."""
        before = self._messages
        self._extend(*self._answers(calls, answers))
        if not self.fits:
            self._messages = before
            self._extend(*self._answers(calls, [f"...{MARK}..."] * len(answers)))
            room = max(0, self._limit - len(self.prompt)) // len(answers)
            cut = Shorten(room, "middle", self._codec.encode, self._codec.text)
            self._messages = before
            self._extend(*self._answers(calls, [cut(answer) for answer in answers]))

    def _extend(self, *messages: Message) -> None:
        self._messages = [*self._messages, *messages]
        self.prompt = self._row = self._codec.prompt(self._messages, self._tools)

    def _answers(self, calls: Sequence[ToolCall], answers: Sequence[str]) -> list[Message]:
        return [
            {"role": "tool", "content": answer, "tool_call_id": self._call_id(place), "name": call.name}
            for place, (call, answer) in enumerate(zip(calls, answers, strict=True))
        ]

    def _read(self, generation: Generation) -> ParsedReply:
        reply = decode_reply(
            generation.token_ids,
            self._markup,
            self._codec.text,
            stopped=generation.finish_reason == "stop",
            thinking=self._codec.ends_with(self.prompt, _THINK),
        )
        return self._format.parse(reply, self._parameters) if self._tools else self._format.split(reply)

    def _message(self, text: str, generation: Generation, parsed: ParsedReply) -> Message:
        """The reply as templates read it."""
        message: Message = {"role": "assistant", "content": text, "token_ids": generation.token_ids}
        if parsed.calls or parsed.reasoning:
            message["content"] = parsed.content
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = [self._call(place, call) for place, call in enumerate(parsed.calls)]
        return message

    def _call(self, place: int, call: ToolCall) -> MessageCall:
        function: Any = {"name": call.name, "arguments": dict(call.arguments)}
        return {"id": self._call_id(place), "type": "function", "function": function}

    def _call_id(self, place: int) -> str:
        return f"c{self._session.turns:05}{place:03}"  # nine letters and digits, as the templates of Mistral want them


def _action(text: str, parsed: ParsedReply) -> Action:
    """What follows the reasoning is the action: the answer, or the calls."""
    start = 0
    # Reasoning of several blocks has something between its lines.
    for thought in [parsed.reasoning] if parsed.reasoning in text else parsed.reasoning.split("\n"):
        found = text.find(thought, start)
        start = start if found < 0 else found + len(thought)
    broken = any(call.status != "ok" for call in parsed.calls)
    said = text[start:].strip()
    return Action(said, "invalid" if broken else "valid", said, parsed.reasoning, start)
