"""Over HTTP, as vLLM and SGLang write it: the same replies, and every failure of a server survived or told."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import brains
import pytest
import torch
from brains import STOP
from fake_server import Fake
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM

from turnwise.engines.client import LLMServerClient
from turnwise.engines.in_vllm.turnwise_worker import Heads
from turnwise.engines.local import LocalEngine
from turnwise.engines.servers import Http, make_piece
from turnwise.engines.sglang import SGLangServer
from turnwise.engines.vllm import VLLMServer
from turnwise.engines.weights import WeightsFolder
from turnwise.types import Generation, Sampling

GREEDY = Sampling(10, temperature=0)
STOPS = frozenset([STOP])
PROMPTS = [tuple(range(n, 3 * n)) for n in range(1, 7)]
WIRES: list[Any] = ["vllm", "sglang"]


def expected(prompt: Sequence[int], weight: float = 0.0, most: int = 10) -> tuple[int, ...]:
    return brains.expected(prompt, most, weight)


LONG = next(prompt for prompt in PROMPTS if len(expected(prompt)) == 10)


@pytest.fixture
def fakes():
    made: list[Fake] = []

    def make(*arguments: Any, **options: Any) -> Fake:
        made.append(Fake(*arguments, **options))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@pytest.fixture
def connect(tmp_path: Path):
    made: list[LLMServerClient] = []

    def connect(*fakes: Fake, **limits: Any) -> LLMServerClient:
        kinds = {"vllm": VLLMServer, "sglang": SGLangServer}
        servers = [kinds[fake.wire](fake.url, STOPS) for fake in fakes]
        limits = {"wait_s": 30.0, "timeout_s": 30.0, **limits}
        made.append(LLMServerClient(servers, WeightsFolder(tmp_path / f"weights{len(made)}"), **limits))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def ask(client: LLMServerClient, *prompts: Sequence[int], sampling: Sampling = GREEDY) -> list[Generation]:
    async def ask() -> list[Generation]:
        return await asyncio.gather(*(client.generate(p, sampling, f"{n}") for n, p in enumerate(prompts)))

    return asyncio.run(ask())


def weights(weight: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(weight)}


def assert_whole(replies: Sequence[Generation], prompts: Sequence[Sequence[int]], weight: float = 0.0) -> None:
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.token_ids == expected(prompt, weight)
        assert reply.logprobs == tuple(-token / 100 - 0.01 for token in reply.token_ids)
        assert reply.finish_reason == ("stop" if reply.token_ids[-1] == STOP else "length")


# -- what is said and heard


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("incremental", [True, False])
def test_ids_go_in_and_ids_and_log_probs_come_out(fakes, connect, wire, incremental):
    fake = fakes(wire, incremental=incremental)
    assert_whole(ask(connect(fake), *PROMPTS), PROMPTS)
    key = "token_ids" if wire == "vllm" else "input_ids"
    assert sorted(body[key] for body in fake.asked) == sorted(map(list, PROMPTS))


@pytest.mark.parametrize("wire", WIRES)
def test_the_server_is_told_how_to_sample(fakes, connect, wire):
    fake = fakes(wire)
    ask(connect(fake), LONG, sampling=Sampling(4, 0.7, seed=2**61 + 3))
    told = fake.asked[0]["sampling_params"]
    names = {"vllm": ("max_tokens", "seed"), "sglang": ("max_new_tokens", "sampling_seed")}[wire]
    assert (told["temperature"], told["top_p"], *(told[name] for name in names)) == (0.7, 1.0, 4, 2**61 + 3)
    assert told["stop_token_ids"] == [STOP]


def test_sglang_scores_filtered_tokens_over_the_whole_distribution_and_vllm_does_not(fakes, connect):
    fake = fakes("sglang")
    ask(connect(fake), LONG, sampling=Sampling(4, top_p=0.9, top_k=5))
    assert (fake.asked[0]["sampling_params"]["top_p"], fake.asked[0]["sampling_params"]["top_k"]) == (0.9, 5)
    ask(connect(fake), LONG, sampling=Sampling(4))
    assert fake.asked[1]["sampling_params"]["top_k"] == -1
    for filters in ({"top_p": 0.9}, {"top_k": 5}):
        with pytest.raises(ValueError, match=r"rollout\.top_p=1 and rollout\.top_k=0"):
            ask(connect(fakes("vllm")), LONG, sampling=Sampling(4, **filters))


@pytest.mark.parametrize("wire", WIRES)
def test_new_weights_reach_every_server_without_a_restart(fakes, connect, wire):
    servers = [fakes(wire), fakes(wire)]
    client = connect(*servers)
    assert_whole(ask(client, *PROMPTS), PROMPTS)
    for version in (1, 2):
        client.load(weights(float(version)), version)
        replies = ask(client, *PROMPTS)
        assert_whole(replies, PROMPTS, float(version))
        assert {reply.policy_version for reply in replies} == {version}
    assert expected(LONG, 1.0) != expected(LONG, 2.0) != expected(LONG)
    if wire == "vllm":
        for fake in servers:
            assert len({body["cache_salt"] for body in fake.asked}) == 3


def test_what_a_server_read_for_an_earlier_run_is_not_read_again(fakes, connect):
    """Its versions had the same numbers, and other weights."""
    fake = fakes("vllm")
    for weight in (1.0, 2.0):
        client = connect(fake)
        client.load(weights(weight), 1)
        ask(client, LONG)
    assert len({body["cache_salt"] for body in fake.asked}) == 2


# -- pauses


@pytest.mark.parametrize("wire", WIRES)
def test_a_pause_stops_the_server_and_what_was_sampled_stays(fakes, connect, wire):
    fake = fakes(wire, fault=lambda request, place: "hang" if (request, place) == (0, 4) else "")
    client = connect(fake)

    def retrain() -> None:
        while client.counters[fake.url].tokens < 4:
            time.sleep(0.01)
        client.load(weights(5.0), 3)

    trainer = threading.Thread(target=retrain)
    trainer.start()
    (reply,) = ask(client, LONG)
    trainer.join()
    head = expected(LONG)[:4]
    assert reply.token_ids == head + expected((*LONG, *head), 5.0, 6)
    assert reply.versions == (0,) * 4 + (3,) * (len(reply.token_ids) - 4)
    assert len(fake.asked) == 2


# -- a real model behind the wire


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_is_served_and_killed_replies_as_one_that_is_not(tiny, fakes, connect, wire):
    engine = LocalEngine(tiny[0], STOPS, nullcontext())
    whole = [asyncio.run(engine.generate(prompt, GREEDY)) for prompt in PROMPTS[:3]]
    turns = threading.Lock()

    def brain(ids: Sequence[int], weight: float) -> tuple[int, float]:
        with turns:
            one = asyncio.run(engine.generate(ids, Sampling(1, temperature=0)))
        return one.token_ids[0], one.logprobs[0]

    dies = fakes(wire, brain, lambda request, place: "die" if place == 5 else "")
    replies = ask(connect(dies, fakes(wire, brain)), *PROMPTS[:3])
    for one, other in zip(replies, whole, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


# -- servers that fail


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["die", "hang", "500", "error", "abort", "end"])
def test_whatever_befalls_one_server_the_other_goes_on(fakes, connect, wire, fault):
    bad = fakes(wire, fault=lambda request, place: fault if place == (0 if fault == "500" else 3) else "")
    good = fakes(wire)
    client = connect(bad, good, timeout_s=0.5 if fault == "hang" else 30.0, max_failures=2)
    assert_whole(ask(client, *PROMPTS), PROMPTS)
    assert client.counters[bad.url].failures >= 1 and client.counters[good.url].failures == 0
    assert client.counters[bad.url].moved >= 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_that_was_killed_and_came_back_gets_the_weights_it_missed(fakes, connect, wire):
    fake = fakes(wire)
    client = connect(fake)
    client.load(weights(1.0), 1)
    fake.die()
    threading.Timer(0.3, fake.revive).start()
    assert_whole(ask(client, *PROMPTS), PROMPTS, 1.0)
    assert fake.version.endswith(".1")


@pytest.mark.parametrize("wire", WIRES)
def test_one_that_restarted_unseen_is_found_out(fakes, connect, wire):
    fake = fakes(wire)
    client = connect(fake)
    client.load(weights(1.0), 1)
    fake.die()
    fake.revive()
    assert_whole(ask(client, LONG), [LONG], 1.0)
    assert client.counters[fake.url].failures >= 1


def test_tokens_that_were_left_out_are_sampled_again(fakes, connect, monkeypatch):
    sample, asked = Fake.sample, []

    def lossy(fake: Fake, number: int, body: dict[str, Any]) -> Any:
        asked.append(number)
        return (event for place, event in enumerate(sample(fake, number, body)) if number or place != 3)

    monkeypatch.setattr(Fake, "sample", lossy)
    assert_whole(ask(connect(fakes("sglang")), LONG), [LONG])
    assert asked == [0, 1]


# -- mistakes, told at once


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("fault", "words"),
    [("short", "log-probs for . token.*one for each"), ("nan", "no numbers"), ("400", "with 400: .*refused with 400")],
)
def test_what_no_other_server_would_do_better_is_one_sentence(fakes, connect, wire, fault, words):
    bad = fakes(wire, fault=lambda request, place: fault if place == (0 if fault == "400" else 2) else "")
    with pytest.raises(ValueError, match=words) as caught:
        ask(connect(bad, bad2 := fakes(wire, fault=bad.fault)), LONG)
    assert len(str(caught.value).splitlines()) == 1 and len(bad.asked) + len(bad2.asked) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_of_another_kind_is_one_sentence(fakes, connect, wire, monkeypatch):
    monkeypatch.setattr(Fake, "_event", lambda *_: {"choices": [{}], "output_ids": [1], "meta_info": {}})
    with pytest.raises(ValueError, match=r"does not answer as (vLLM|SGLang) 0\.\d+ does \(KeyError"):
        ask(connect(fakes(wire)), LONG)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"extension": ""}, "PYTHONPATH=.*in_vllm and --worker-extension-cls turnwise_worker"),
    ],
)
def test_a_vllm_that_would_answer_wrongly_is_refused(fakes, connect, options, words):
    client = connect(fakes("vllm", **options))
    with pytest.raises(ValueError, match=words):
        client.load(weights(1.0), 1)


def test_a_vllm_that_reads_less_than_the_recipe_allows_is_refused(fakes, tmp_path):
    fake = fakes("vllm", longest=1500)
    with pytest.raises(ValueError, match=r"reads 1500 tokens at most .*allow together, 1536; let it read as many"):
        VLLMServer(fake.url, frozenset([STOP]), 1536).load(Path("weights"), 1)
    VLLMServer(fake.url, frozenset([STOP]), 1500).load(WeightsFolder(tmp_path).write(weights(1.0), 1), 1)


def test_beside_a_processor_vllm_needs_no_extension(fakes, connect):
    client = connect(fakes("vllm", device="cuda", extension=""))
    client.load(weights(1.0), 1)
    assert_whole(ask(client, LONG), [LONG], 1.0)


def test_the_extension_packs_the_head_and_nothing_else():
    packed: list[object] = []

    class ParallelLMHead(torch.nn.Module):
        quant_method = SimpleNamespace(process_weights_after_loading=packed.append)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), ParallelLMHead())
    worker = Heads()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    worker.turnwise_pack_heads()
    assert packed == [model[1]]


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_of_pages_is_one_sentence(fakes, connect, wire, monkeypatch):
    fake = fakes(wire)
    monkeypatch.setattr(fake, "tell", lambda *_: (200, ""))
    monkeypatch.setattr("fake_server.json", SimpleNamespace(loads=json.loads, dumps=lambda _: "<html>"))
    with pytest.raises(ValueError, match=r"does not answer /\S+ in JSON; engine\.urls must name"):
        connect(fake).load(weights(1.0), 1)


def test_a_server_without_the_endpoints_is_told_apart(fakes, connect):
    client = connect(fakes("sglang"))
    other: Callable[..., Any] = VLLMServer
    vllm = LLMServerClient([other(next(iter(client.counters)), STOPS)], client._weights)
    with pytest.raises(ValueError, match="answered /inference/v1/generate with 404"):
        ask(vllm, LONG)


ADDRESSES = ["127.0.0.1:8000", "ftp://127.0.0.1", "http://127.0.0.1:8000/v1", ""]
SECRETS = ["http://me:secret@127.0.0.1:1/v1", "http://127.0.0.1/?key=secret"]


@pytest.mark.parametrize("url", ADDRESSES + SECRETS)
def test_an_address_is_bare_and_its_secrets_are_not_repeated(url):
    with pytest.raises(ValueError, match=r"engine\.urls.*bare address") as caught:
        Http(url)
    assert "secret" not in str(caught.value)


# -- weights on disk


def test_weights_are_written_whole_once_and_alone(tmp_path):
    table = torch.arange(6.0).reshape(2, 3)
    folder = WeightsFolder(tmp_path / "weights")
    (tmp_path / "weights" / "7b-of-the-user").mkdir(parents=True)
    folder.write(weights(1.0), 1)
    newest = folder.write({"embed": table, "head": table, "norm": torch.ones(2, 2).T}, 20)
    halved = WeightsFolder(tmp_path / "halved", torch.bfloat16).write(weights(1 / 3), 1)
    assert torch.equal(load_file(halved / "model.safetensors")["weight"], weights(1 / 3)["weight"].bfloat16())
    left = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert folder.newest == newest and left == ["000020", "7b-of-the-user"]
    read = load_file(newest / "model.safetensors")
    assert set(read) == {"embed", "norm"} and torch.equal(read["embed"], table)


def test_servers_get_weights_by_the_names_of_a_checkpoint(tmp_path):
    """Which transformers changes when it opens one, and puts all experts into one tensor."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = MixtralConfig(vocab_size=32, intermediate_size=8, num_local_experts=4, **sizes)
    model = MixtralForCausalLM(config)
    model.save_pretrained(tmp_path / "saved")
    sent = load_file(WeightsFolder(tmp_path, model=model).write(model.state_dict(), 1) / "model.safetensors")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert set(sent) == set(saved) != set(model.state_dict())
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


@pytest.mark.parametrize("wire", WIRES)
def test_weights_of_another_run_at_the_same_step_are_noticed(fakes, connect, wire):
    fake = fakes(wire)
    mine, other = connect(fake), connect(fake)
    mine.load(weights(1.0), 5)
    other.load(weights(3.0), 5)
    assert_whole(ask(mine, *PROMPTS), PROMPTS, 1.0)  # it has its own weights read again


@pytest.mark.parametrize("url", ["http://127.0.0.1:80a", "http://127.0.0.1:99999", "http://127.0.0.1:0"])
def test_a_port_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="write the bare address"):
        Http(url)


def test_what_vllm_sends_for_no_log_prob_is_none():
    with pytest.raises(ValueError, match="log-probs that are no numbers"):
        make_piece("here", [1, 2], [-0.5, -9999.0], None, frozenset())
