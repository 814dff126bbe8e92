"""Answers the prompt of a sample once."""

from turnwise.agents.chat import Chat, sample_of
from turnwise.agents.judge import Judge
from turnwise.protocols import Session, Setting
from turnwise.tokencheck import Mode
from turnwise.toolcalls import find_format
from turnwise.types import Ending


class SingleTurn:
    def __init__(self, setting: Setting, format: str = "hermes"):
        """`format` is that of the model's replies: in which it sets its reasoning apart."""
        self._check: Mode = setting.config.rollout.token_check
        self._codec = setting.codec
        self._format = find_format(format)
        self._limit = setting.config.rollout.max_prompt_tokens
        self._judge = Judge(setting)

    async def run(self, session: Session) -> Ending:
        sample = sample_of(session)
        chat = Chat(session, self._codec, sample.prompt, self._limit, tool_format=self._format)
        await chat.reply()
        chat.check(self._check)
        return await self._judge(session, sample, chat)
