"""The benchmark of Qwen2.5-3B's size goes through, on a small model."""

import json

import pytest

from benchmarks import qwen3b, report


def test_a_step_in_both_ways_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "CACHE", tmp_path)
    qwen3b.main(["--small"])
    figures = json.loads((tmp_path / "tried" / "qwen3b.json").read_text())
    for way in ("full", "lora"):
        assert figures[way]["engine_gap"] < 0.05
        assert figures[way]["turns_per_s"] > 0
    assert figures["lora"]["trained_parameters"] < figures["full"]["trained_parameters"]


def test_an_update_can_be_watched(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "CACHE", tmp_path)
    qwen3b.main(["--small", "--only", "lora", "--profile"])
    told = capsys.readouterr().out
    assert "aten::mm" in told and "the update took" in told
    assert not (tmp_path / "tried").exists()


def test_common_beginnings_are_counted_once():
    size = qwen3b.SMALL
    job = qwen3b.make_job(size)
    config = qwen3b.configure("full", size, micro_tokens=1000, twice=False)
    policy = qwen3b.make_policy(config, size, qwen3b.pick_device("cpu"))
    engine = qwen3b.LocalEngine(policy.actor, frozenset(), policy.precision)
    batch, _, _ = qwen3b.step(config, job, policy, qwen3b.Optimizers(policy, config.update), engine, 0)
    weights = sum(p.numel() for name, p in policy.actor.named_parameters() if ".layers." in name)
    found = qwen3b.operations(policy, batch, config, 0)
    prompts, replies = sum(map(len, job.prompts)), len(job.prompts) * job.reply_tokens
    once = 2 * 2 * weights * (prompts + replies)  # two trunks, each token by itself
    head = 2 * 64 * 500 * replies
    assert 3 * (once / 4 + head) < found < 0.8 * 3 * (once + head)  # 30 of 65 tokens are common to the rows of a line


@pytest.mark.parametrize("way", ["full", "lora"])
def test_it_is_configured_as_a_recipe_is(way):
    config = qwen3b.configure(way, qwen3b.LARGE)
    assert (config.model.lora is None) == (way == "full")
    assert config.rollout.n_env * config.rollout.e_len == 256
