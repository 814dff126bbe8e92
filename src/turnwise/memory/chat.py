"""The messages that memories are made of."""

from turnwise.types import Message, Observation, Turn


def system(observation: Observation) -> list[Message]:
    """The instructions, or no message where there are none."""
    return [{"role": "system", "content": observation.instructions}] if observation.instructions else []


def shown(observation: Observation) -> Message:
    """A past observation."""
    return {"role": "user", "content": observation.text}


def asked(observation: Observation) -> Message:
    """The observation to which the model is to answer now."""
    return {
        "role": "user",
        "content": f"{observation.text}\n{observation.cue}" if observation.cue else observation.text,
    }


def reply(turn: Turn, thought: bool = True) -> Message:
    """A past reply: the very ids that were sampled, unless it is shown otherwise than it was said."""
    if not thought:
        return {"role": "assistant", "content": turn.shown_action}
    if turn.shown != turn.text:
        return {"role": "assistant", "content": turn.shown}
    return {"role": "assistant", "content": turn.text, "token_ids": turn.generation.token_ids}
