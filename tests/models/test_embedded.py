"""The models that ship do what their recipes are about, and leave something to be learned."""

import re

from turnwise.evaluate import play_held_out
from turnwise.players import open_player
from turnwise.recipe import load_config


def test_the_model_with_a_calculator_calls_it_as_often_as_not():
    config = load_config("gsm8k-tool", ["evaluation.episodes=48", "model.precision=fp32"])
    engine, codec = open_player(config, None)
    episodes = [one for slot in play_held_out(config, engine, codec) for one in slot.share.segments]
    asked = [episode for episode in episodes if len(episode.turns) == 2]
    assert 12 <= len(asked) <= 36 and {len(episode.turns) for episode in episodes} <= {1, 2}
    faithful = 0
    for episode in asked:
        (problem,) = re.findall(r"(\d+ \* \d+) = \?", codec.text(episode.turns[0].prompt_ids))
        faithful += f'"expression": "{problem}"' in codec.text(episode.turns[0].generation.token_ids)
    assert len(asked) / 2 <= faithful < len(asked)
    won = [episode for episode in episodes if episode.outcome and episode.outcome.episode_return == 1]
    assert 5 <= len(won) <= 20 and all(episode in asked for episode in won)
