"""The benchmark of collecting compares batches of what it says."""

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
from helpers import Scripted
from transformers import AutoTokenizer

from benchmarks import collect_gpu
from benchmarks.collect import CAP, CASES, MEAN, ON_AND_ON, OURS, SLOTS, WAYS, Elastic, Geometric, batch, make_collector
from turnwise.config import ModelConfig
from turnwise.models import EMBEDDED, open_model
from turnwise.render import Renderer


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """Turns by way, of a batch that begins with the same levels."""
    renderer = Renderer(AutoTokenizer.from_pretrained(EMBEDDED["tiny"]))
    case = replace(CASES[""], turns=2)
    found = {}
    for way in WAYS:
        collector = make_collector(case, way, renderer)
        engine = Scripted(renderer, ["ACTION: drop"])
        elastic = Elastic(collector).batch(engine) if way in ON_AND_ON else None
        found[way], seconds, idle = elastic or asyncio.run(batch(way, collector, engine))
        collector.close()
        assert seconds > 0
        assert 0 <= idle < 1
    return found


def test_batches_of_turns_have_as_many_as_they_should(counts):
    assert {counts[way] for way in OURS} == {2 * SLOTS}


def test_whole_episodes_are_the_same_however_they_are_collected(counts):
    assert len({counts[way] for way in WAYS if way not in (*OURS, "episodes_carried")}) == 1


def test_carried_episodes_end_a_batch_when_so_many_have_ended():
    renderer = Renderer(AutoTokenizer.from_pretrained(EMBEDDED["tiny"]))
    with closing(make_collector(CASES[""], "episodes_carried", renderer)) as collector:
        ended = [0, 0]
        for number in range(2):
            segments = collector.collect(Scripted(renderer, ["ACTION: drop"]))
            ended[number] = sum(segment.outcome is not None for segment in segments)
    assert ended == [CASES[""].episodes] * 2


def test_lengths_are_geometric():
    environment, lengths = Geometric(), []
    for seed in range(4000):
        environment.reset(seed=seed)
        lengths.append(environment.limit)
    assert sum(lengths) / len(lengths) == pytest.approx(MEAN, rel=0.05)
    assert max(lengths) <= CAP
    assert sum(length == 1 for length in lengths) / len(lengths) == pytest.approx(1 / MEAN, rel=0.3)


def test_both_kinds_of_batches_have_about_as_many_turns():
    for case in CASES.values():
        assert SLOTS * case.turns <= case.episodes * MEAN < SLOTS * case.turns + MEAN


def test_the_model_for_a_gpu_is_opened_like_any_other(tmp_path, monkeypatch):
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setattr(collect_gpu, "SHAPE", {**small, "num_key_value_heads": 1})
    collect_gpu.make_model(tmp_path)
    model, tokenizer = open_model(ModelConfig(path=str(tmp_path)))
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.chat_template
