"""What is learned from a batch does not depend on how it was laid out."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import segment, turn
from torch import Tensor, nn

from turnwise import fused
from turnwise import policy as policies
from turnwise.advantages.gae import DualGAE
from turnwise.batch import Batch, Estimate, pack
from turnwise.config import KLConfig, UpdateConfig, WarmupConfig
from turnwise.lanes import Lanes
from turnwise.lines import Micro
from turnwise.policy import Forward, Policy, Scores
from turnwise.types import Segment
from turnwise.update import Credit, Objective, Optimizers, assign_credit, fit_critic, minibatches, update

UPDATE = UpdateConfig(actor_lr=1e-3, critic_lr=1e-2, minibatch=1000)


@pytest.fixture(params=["separate", "shared"])
def critic(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def modules(monkeypatch):
    """Rows are read by the modules of transformers."""
    monkeypatch.setattr(fused, "can_read", lambda trunk: False)


@pytest.fixture
def all_rows(monkeypatch):
    """The actor reads rows without a gradient too."""
    monkeypatch.setattr(Objective, "moving", lambda self, rows: rows)


def ids(seed: int, count: int) -> list[int]:
    return torch.randint(0, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def make_segments(joined: bool = False) -> list[Segment]:
    """Six segments of up to four turns with prompts and replies of all lengths, ended in all three ways.

    Each prompt holds all that came before it in its segment; `joined` leaves the turns in one segment, so that they
    share a row, otherwise a token in front of each prompt keeps them apart.
    """
    segments = []
    for number in range(6):
        row: list[int] = []
        turns = []
        for place in range(1 + number % 4):
            seed = 10 * number + place
            prompt = [*row, *ids(seed, 3 + 5 * (seed % 4))]
            sampled = ids(1000 + seed, 1 + seed % 6)
            prompt = prompt if joined else [place, *prompt]
            turns.append(turn(prompt, sampled, reward=(seed % 5 - 2) / 2))
            row = [*prompt[0 if joined else 1 :], *sampled]
        end = ("terminated", "truncated", "cut")[number % 3]
        segments.append(segment(*turns, end=end, final=[*row, 7, 8] if joined else [9, *row, 7, 8], slot=number))
    return segments


def make_policy(model: Any, critic: str, reference: bool = False, temperature: float = 1.0) -> Policy:
    """A policy whose critic has an opinion."""
    policy = Policy(deepcopy(model), critic, reference, temperature)
    with torch.no_grad():
        policy.value_head.weight.normal_(std=0.2, generator=torch.manual_seed(1))
    return policy


def opinions(policy: Policy, segments: list[Segment]) -> tuple[Batch, Credit]:
    """A batch as the policy itself would have sampled it a little earlier, with advantages and returns of all sizes."""
    batch = pack(segments)
    count = len(batch.logprobs)
    rng = torch.Generator().manual_seed(3)
    noise = [torch.randn(count, generator=rng) for _ in range(4)]
    batch = replace(batch, logprobs=policy.logprobs(batch, 100_000) + 0.3 * noise[0])
    values = policy.score(batch, 100_000).values
    reference = batch.logprobs + 0.5 * noise[3]
    return batch, Credit(noise[1], values + noise[2], values + 0.3 * noise[3], reference, batch.logprobs - reference)


class Capture(Optimizers):
    """Keeps the gradients and takes no step."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, *models: str, scheduled: bool = True) -> dict[str, float]:
        if scheduled and "actor" not in models:  # which comes last, but for the warm-up
            return {}
        named = self.policy.named_parameters()
        self.gradients.append({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named})
        self.policy.zero_grad()
        return {}


def learn(
    policy: Policy, batch: Batch, credit: Credit, kl: KLConfig | None = None, **changes: Any
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The figures and the gradient of one optimizer step."""
    capture = Capture(policy)
    config = UPDATE.model_copy(update=changes)
    stats = update(policy, capture, batch, credit, config, kl or KLConfig(loss=0.05), seed=0)
    (gradient,) = capture.gradients
    return stats, gradient


def assert_same(one: Any, other: Any, tolerance: float = 3e-6) -> None:
    """Figures and gradients, the latter relative to the largest entry of each parameter."""
    for name in one[0]:
        assert one[0][name] == pytest.approx(other[0][name], rel=10 * tolerance, abs=1e-6), name
    for name in one[1]:
        scale = one[1][name].abs().max()
        assert (one[1][name] - other[1][name]).abs().max() <= tolerance * max(float(scale), 1e-3), name


# -- layout


@pytest.mark.parametrize("joined", [False, True])
def test_any_micro_batch_size_gives_the_same_loss_and_gradient(tiny, critic, joined):
    policy = make_policy(tiny[0], critic)
    batch, credit = opinions(policy, make_segments(joined))
    expected = learn(policy, batch, credit)
    assert all(gradient.abs().max() > 0 for gradient in expected[1].values())
    for micro_tokens in (1, 64, 200, 500):
        assert_same(learn(policy, batch, credit, micro_tokens=micro_tokens), expected)


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_lanes_gives_the_same_scores_loss_and_gradient(tiny, critic, count):
    policy = make_policy(tiny[0], critic, reference=True)
    batch, credit = opinions(policy, make_segments())
    alone = learn(policy, batch, credit, micro_tokens=64), policy.score(batch, 64)
    policy.lanes = Lanes(count)
    beside = learn(policy, batch, credit, micro_tokens=64), policy.score(batch, 64)
    assert_same(beside[0], alone[0])
    for one, other in zip(vars(alone[1]).values(), vars(beside[1]).values(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_only_small_models_whose_lines_we_read_ourselves_have_a_lane_a_core(tiny, monkeypatch):
    cores = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert make_policy(tiny[0], "shared").lanes.count == 3
        monkeypatch.setattr(policies, "_SMALL", tiny[0].num_parameters() - 1)
        assert make_policy(tiny[0], "shared").lanes.count == 1
        monkeypatch.undo()
        monkeypatch.setattr(fused, "can_read", lambda trunk: False)
        assert make_policy(tiny[0], "shared").lanes.count == 1
    finally:
        torch.set_num_threads(cores)


@pytest.mark.parametrize("joined", [False, True])
def test_any_order_of_the_segments_gives_the_same_loss_and_gradient(tiny, critic, joined):
    policy = make_policy(tiny[0], critic)
    segments = make_segments(joined)
    batch, credit = opinions(policy, segments)
    expected = learn(policy, batch, credit, micro_tokens=200)
    lengths = [sum(len(t.generation.token_ids) for t in one.turns) for one in segments]
    for order in ([5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3]):
        starts = torch.tensor([0, *lengths]).cumsum(0)
        places = torch.cat([torch.arange(int(starts[e]), int(starts[e]) + lengths[e]) for e in order])
        turned = replace(pack([segments[e] for e in order]), logprobs=batch.logprobs[places])
        fields = ("advantages", "returns", "old_values", "reference", "kl")
        moved = Credit(**{name: getattr(credit, name)[places] for name in fields})
        assert_same(learn(policy, turned, moved, micro_tokens=200), expected)


def test_padding_changes_nothing(tiny, critic):
    """Each turn alone, and all side by side with one that is far longer."""
    policy = make_policy(tiny[0], critic)
    short = make_segments()
    long = segment(turn(ids(5, 300), ids(6, 3)))
    apart, together = pack(short), pack([*short, long])
    count = len(apart.logprobs)
    wide, narrow = policy.score(together, 1_000_000), policy.score(apart, 1)
    assert torch.allclose(wide.values[:count], narrow.values, atol=1e-5)
    assert torch.allclose(wide.bootstraps[:-1], narrow.bootstraps, atol=1e-5)
    assert torch.allclose(policy.logprobs(together, 1_000_000)[:count], policy.logprobs(apart, 1), atol=1e-5)


@pytest.mark.parametrize("common", [0, 1, 40])
def test_what_rows_begin_with_is_read_once_and_learned_from_all(modules, tiny, critic, common):
    policy = make_policy(tiny[0], critic)
    start = ids(99, common)
    segments = [
        segment(
            *(turn([*start, *t.prompt_ids], list(t.generation.token_ids), reward=t.reward) for t in one.turns),
            end=one.end,
            final=[*start, *one.final_prompt_ids] if one.final_prompt_ids else (),
        )
        for one in make_segments()
    ]
    batch, credit = opinions(policy, segments)
    read: list[int] = []
    hook = policy.actor.get_decoder().register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    alone = learn(policy, batch, credit, micro_tokens=1)
    read.clear()
    assert_same(learn(policy, batch, credit), alone, tolerance=1e-5)
    hook.remove()
    turns = [one for segment in segments for one in segment.turns]
    begun = {tuple(one.prompt_ids[:length]) for one in turns for length in range(1, len(one.prompt_ids))}
    assert read == [64 * -(-(len(begun) + sum(len(one.generation.token_ids) for one in turns)) // 64)]
    alone, together = policy.score(batch, 1), policy.score(batch, 100_000)
    assert torch.allclose(alone.values, together.values, atol=1e-5)
    assert torch.allclose(alone.bootstraps, together.bootstraps, atol=1e-5)


def test_the_last_perceptron_sees_only_places_that_are_read(modules, tiny):
    policy = make_policy(tiny[0], "separate")
    batch, credit = opinions(policy, make_segments())
    seen: list[int] = []
    mlp = policy.actor.get_decoder().layers[-1].mlp
    hook = mlp.gate_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:-1].numel()))
    learn(policy, batch, credit)
    hook.remove()
    assert seen == [64 * -(-len(batch.logprobs) // 64)]


def test_checkpointed_activations_teach_the_same(way, tiny, critic):
    policy = make_policy(tiny[0], critic)
    batch, credit = opinions(policy, make_segments())
    expected = learn(policy, batch, credit)
    policy.checkpoint_activations()
    assert_same(learn(policy, batch, credit, gradient_checkpointing=True), expected)


def test_a_large_vocabulary_is_read_in_parts_that_teach_the_same(monkeypatch, tiny, critic):
    policy = make_policy(tiny[0], critic)
    batch, credit = opinions(policy, make_segments())
    expected, scored = learn(policy, batch, credit), policy.logprobs(batch, 1000)
    vocabulary = policy.actor.config.vocab_size
    monkeypatch.setattr(policies, "_LOGITS", 10 * vocabulary)
    seen: list[int] = []
    hook = policy.actor.lm_head.register_forward_hook(lambda *given: seen.append(given[2].shape.numel()))
    assert_same(learn(policy, batch, credit), expected)
    hook.remove()
    assert len(seen) == 2 * -(-len(batch.logprobs) // 10)  # each again in the backward pass
    assert max(seen) == 64 * vocabulary
    assert torch.allclose(policy.logprobs(batch, 1000), scored, atol=1e-5)


def test_turns_in_one_row_are_scored_as_turns_in_rows_of_their_own(tiny, critic):
    """As with a memory that only appends: what one row holds, and each prompt by itself."""
    policy = make_policy(tiny[0], critic)
    one_row = make_segments(joined=True)
    own_rows = [segment(t, end=s.end, final=s.final_prompt_ids) for s in one_row for t in s.turns]
    full, window = pack(one_row), pack(own_rows)
    assert len(full.trained_rows) == 6
    assert len(window.trained_rows) == sum(len(one.turns) for one in one_row) > 6
    assert torch.allclose(policy.logprobs(full, 300), policy.logprobs(window, 300), atol=1e-5)
    assert torch.allclose(policy.score(full, 300).values, policy.score(window, 300).values, atol=1e-5)


def test_turns_in_one_row_teach_the_same_as_turns_in_rows_of_their_own(tiny, critic):
    policy = make_policy(tiny[0], critic)
    one_row = make_segments(joined=True)
    own_rows = [segment(t, end=s.end, final=s.final_prompt_ids) for s in one_row for t in s.turns]
    full, credit = opinions(policy, one_row)
    window = replace(pack(own_rows), logprobs=full.logprobs)
    assert_same(learn(policy, window, credit), learn(policy, full, credit))


def test_minibatches_take_the_whole_batch_apart(tiny):
    """Each minibatch divides by its own tokens, so their gradients, weighed by these, are that of the whole."""
    policy = make_policy(tiny[0], "separate")
    batch, credit = opinions(policy, make_segments())
    (_, whole), capture = learn(policy, batch, credit), Capture(policy)
    update(policy, capture, batch, credit, UPDATE.model_copy(update={"minibatch": 5}), KLConfig(loss=0.05), seed=4)
    assert len(capture.gradients) == 3
    # The share of tokens in each is not told, but it is the one mixture that gives the whole.
    parts = torch.stack([torch.cat([g.flatten() for g in one.values()]) for one in capture.gradients], 1)
    target = torch.cat([g.flatten() for g in whole.values()])
    shares = torch.linalg.lstsq(parts.double(), target.double()[:, None]).solution[:, 0]
    assert shares.sum() == pytest.approx(1, abs=1e-3)
    assert torch.allclose(shares * len(batch.logprobs), (shares * len(batch.logprobs)).round(), atol=0.01)
    assert torch.allclose(parts.double() @ shares, target.double(), atol=1e-5)


def test_questions_of_a_memory_make_no_more_optimizer_steps():
    plain = [segment(*(turn([n, 1], [2]) for n in range(8))) for _ in range(4)]
    asking = [
        segment(*(turn([n, m], [2], of_memory=m > 0) for n in range(8) for m in (2, 1, 0)), end="truncated")
        for _ in range(4)
    ]
    for segments, rows in ((plain, 32), (asking, 96)):
        batch = pack(segments)
        parts = list(minibatches(batch.trained_rows, batch, 8, 0))
        assert len(parts) == 4 and sum(map(len, parts)) == rows


# -- rows that have no gradient


def partly_credited(policy: Policy) -> tuple[Batch, Credit, int]:
    """A batch where all but a few rows have no advantage, and how many tokens those few have."""
    batch, credit = opinions(policy, make_segments())
    rows = torch.repeat_interleave(torch.arange(len(batch.row_lengths)), batch.sampled_per_row)
    moving = rows % 3 == 1
    assert 0 < moving.sum() < len(moving) / 2
    return batch, replace(credit, advantages=torch.where(moving, credit.advantages, 0.0)), int(moving.sum())


def count_read(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that the actor reads are noted there, line by line."""
    read: list[int] = []
    forward = policy.forward

    def noted(micro: Micro) -> Forward:
        read.append(len(micro.index))
        return forward(micro)

    monkeypatch.setattr(policy, "forward", noted)
    return read


def test_rows_without_an_advantage_are_not_read_and_nothing_changes(tiny, monkeypatch):
    policy = make_policy(tiny[0], "separate")
    batch, credit, few = partly_credited(policy)
    read = count_read(policy, monkeypatch)
    stats, gradient = learn(policy, batch, credit, KLConfig(), entropy=0.0, micro_tokens=200)
    assert sum(read) == few
    monkeypatch.setattr(Objective, "moving", lambda self, rows: rows)
    all_stats, expected = learn(policy, batch, credit, KLConfig(), entropy=0.0, micro_tokens=200)
    assert sum(read) == few + len(batch.logprobs)
    of_critic = [{name: x for name, x in told.items() if name.startswith("critic/")} for told in (stats, all_stats)]
    assert_same((of_critic[0], gradient), (of_critic[1], expected))


@pytest.mark.parametrize(
    ("critic", "entropy", "kl"), [("shared", 0.0, 0.0), ("separate", 1e-3, 0.0), ("separate", 0.0, 0.05)]
)
def test_rows_are_read_for_whatever_else_has_a_slope(tiny, monkeypatch, critic, entropy, kl):
    policy = make_policy(tiny[0], critic)
    batch, credit, _ = partly_credited(policy)
    read = count_read(policy, monkeypatch)
    learn(policy, batch, credit, KLConfig(loss=kl), entropy=entropy)
    assert sum(read) == len(batch.logprobs)


def test_an_optimizer_goes_on_where_no_row_has_an_advantage(tiny, request):
    """By what it remembers, as it does where all rows are read."""
    trained = []
    for fixture in (None, "all_rows"):
        if fixture:
            request.getfixturevalue(fixture)
        policy = make_policy(tiny[0], "separate")
        config = UPDATE.model_copy(update={"entropy": 0.0})
        optimizers = Optimizers(policy, config)
        batch, credit = opinions(policy, make_segments())
        nothing = replace(credit, advantages=torch.zeros_like(credit.advantages))
        for of_step in (credit, nothing):
            before = policy.actor.lm_head.weight.clone()
            update(policy, optimizers, batch, of_step, config, KLConfig(), seed=0)
            assert not torch.equal(policy.actor.lm_head.weight, before)
        trained.append(policy.state_dict())
    assert all(torch.allclose(trained[0][name], trained[1][name], atol=1e-7) for name in trained[0])


# -- what a token may see, and what it may change


@pytest.mark.parametrize("position", [0, 2, 5])
def test_nothing_flows_back_into_the_tokens_after(tiny, critic, position):
    policy = make_policy(tiny[0], critic)
    batch = pack([segment(turn(ids(0, 10), ids(1, 6)), end="cut", final=[*ids(0, 10), *ids(1, 6), 3])])
    (micro,) = batch.micros(torch.arange(1), 1000, finals=False)
    inputs: list[Tensor] = []

    def keep(_: Any, __: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    trunks = [trunk for trunk in (policy.actor.get_decoder(), policy.critic_trunk) if trunk is not None]
    hooks = [trunk.get_input_embeddings().register_forward_hook(keep) for trunk in trunks]
    forward = policy(micro)
    values = forward.values if critic == "shared" else policy.values(micro)[0]
    for hook in hooks:
        hook.remove()
    words, seen = nn.functional.pad(micro.line.tokens, (0, 1)).unique(), [*ids(0, 10), *ids(1, 6)][: 10 + position]
    expected = torch.isin(words, torch.tensor(seen))  # the token itself is not seen either
    assert 0 < expected.sum() < len(words)
    for number, quantity in ((0, forward.logprobs), (0, forward.entropy), (-1, values)):
        (gradient,) = torch.autograd.grad(quantity[position], inputs[number], retain_graph=True)
        assert torch.equal(gradient[: len(words)].abs().sum(-1) > 0, expected)


def test_what_is_shown_is_never_a_target(tiny, all_rows):
    """Scaling what the loss says of each sampled token to 0 leaves nothing."""
    policy = make_policy(tiny[0], "separate")
    batch, credit = opinions(policy, make_segments())
    nothing = replace(credit, advantages=torch.zeros_like(credit.advantages))
    _, gradient = learn(policy, batch, nothing, KLConfig(), entropy=0.0)
    for name, parameter in gradient.items():
        assert (parameter.abs().max() > 0) == (not name.startswith("actor.")), name


def test_values_read_the_state_before_a_token_and_bootstraps_that_after_the_next_prompt(tiny, critic):
    policy = make_policy(tiny[0], critic)
    segments = make_segments(joined=True)
    batch = pack(segments)
    scores = policy.score(batch, 300)
    trunk = policy.critic_trunk or policy.actor.get_decoder()

    def value_after(tokens: list[int]) -> float:
        with torch.no_grad():
            return policy.value_head(trunk(torch.tensor([tokens])).last_hidden_state[0, -1]).item()

    expected, bootstraps = [], []
    for one in segments:
        for t in one.turns:
            for place in range(len(t.generation.token_ids)):
                expected.append(value_after([*t.prompt_ids, *t.generation.token_ids[:place]]))
        bootstraps.append(value_after(list(one.final_prompt_ids)) if one.final_prompt_ids else 0.0)
    assert scores.values.tolist() == pytest.approx(expected, abs=1e-5)
    assert scores.bootstraps.tolist() == pytest.approx(bootstraps, abs=1e-5)
    assert bootstraps[0] == 0.0 != bootstraps[1]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_log_probs_and_entropy_are_those_of_the_tempered_distribution(tiny, temperature):
    policy = make_policy(tiny[0], "shared", temperature=temperature)
    batch = pack([segment(turn(ids(0, 10), ids(1, 6)))])
    (micro,) = batch.micros(torch.arange(1), 1000, finals=False)
    with torch.no_grad():
        forward = policy(micro)
        logits = policy.actor(batch.tokens[None]).logits[0, 9:15]
    distribution = torch.distributions.Categorical(logits=logits / temperature)
    assert torch.allclose(forward.logprobs, distribution.log_prob(torch.tensor(ids(1, 6))), atol=1e-5)
    assert torch.allclose(forward.entropy, distribution.entropy(), atol=1e-5)


# -- the critic


def test_values_start_at_zero(tiny, critic):
    scores = Policy(tiny[0], critic, reference=False).score(pack(make_segments()), 500)
    assert scores.values.abs().max() == scores.bootstraps.abs().max() == 0


def test_a_separate_critic_has_a_trunk_of_its_own_and_a_shared_one_only_a_head(tiny):
    separate, shared = (Policy(tiny[0], critic, reference=False) for critic in ("separate", "shared"))
    trunk = sum(1 for _ in tiny[0].get_decoder().parameters())
    assert (len(separate.critic_parameters()), len(shared.critic_parameters())) == (trunk + 2, 2)
    for policy in (separate, shared):
        mine, theirs = set(map(id, policy.actor_parameters())), set(map(id, policy.critic_parameters()))
        assert not mine & theirs
        assert mine | theirs == set(map(id, policy.parameters()))


def test_the_value_loss_reaches_the_trunk_of_the_actor_only_where_it_is_shared(tiny, critic):
    policy = make_policy(tiny[0], critic)
    batch = pack(make_segments())
    (micro,) = batch.micros(batch.trained_rows, 100_000, finals=False)
    values = policy(micro).values
    assert (values is not None) == (critic == "shared")
    if values is not None:
        values.sum().backward()
        assert any(p.grad is not None and bool(p.grad.any()) for p in policy.actor.get_decoder().parameters())
        policy.zero_grad()
    policy.values(micro)[0].sum().backward()  # the warm-up's way: never
    assert all(p.grad is None for p in policy.actor_parameters())
    assert all(p.grad is not None and bool(p.grad.any()) for p in policy.critic_parameters())


def frozen(parameters: list[Any]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def equal(parameters: list[Any], before: list[Tensor]) -> bool:
    return all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))


@pytest.mark.parametrize("w_frac", [0.3, 1.0])
def test_the_warm_up_leaves_the_actor_as_it_was_and_the_critic_better(tiny, critic, w_frac):
    policy = Policy(tiny[0], critic, reference=True)
    config = UPDATE.model_copy(update={"critic_lr": 3e-3 if critic == "separate" else 1e-2, "minibatch": 5})
    optimizers = Optimizers(policy, config)
    batch = pack(make_segments())
    batch = replace(batch, logprobs=policy.logprobs(batch, 1000))
    actor, head = frozen(policy.actor_parameters()), frozen(policy.critic_parameters())
    losses = []
    for seed in range(15):
        credit = assign_credit(batch, policy.score(batch, 1000), DualGAE(), 1e-3)
        stats = fit_critic(policy, optimizers, batch, credit, config, WarmupConfig(w_frac=w_frac), seed)
        losses.append(stats["critic/loss"])
    assert equal(policy.actor_parameters(), actor)
    assert not any(torch.equal(now, then) for now, then in zip(policy.critic_parameters(), head, strict=True))
    assert sum(losses[:5]) > sum(losses[5:10]) > sum(losses[10:])
    assert losses[-1] < 0.75 * losses[0]
    assert optimizers.taken == 0
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_returns_of_any_size_are_learnt_in_the_warm_up(tiny):
    """No clip of values holds the critic back while nobody acts by it."""
    found = []
    for clip in (0.5, None):
        policy = Policy(deepcopy(tiny[0]), "separate", reference=True)
        config = UPDATE.model_copy(update={"critic_lr": 1e-2, "value_clip": clip})
        batch, credit = opinions(policy, make_segments())
        assert credit.returns is not None
        credit = replace(credit, returns=100 * credit.returns)
        for seed in range(3):
            fit_critic(policy, Optimizers(policy, config), batch, credit, config, WarmupConfig(w_frac=1.0), seed)
        found.append(policy.critic_parameters())
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("w_frac", "steps"), [(0.1, 1), (0.5, 2), (1.0, 3)])
def test_the_warm_up_draws_its_share_of_the_turns(tiny, w_frac, steps):
    """13 turns in minibatches of 5: ceil(1.3) = 2, ceil(6.5) = 7 or all 13 of them."""
    policy = make_policy(tiny[0], "shared")
    batch, credit = opinions(policy, make_segments())
    assert len(batch.trained_rows) == 13
    capture, seen = Capture(policy), []
    read = policy.values

    def count(micro: Any) -> Any:
        if torch.is_grad_enabled():
            seen.extend(micro.index.tolist())
        return read(micro)

    policy.values = count  # type: ignore[method-assign]
    config = UPDATE.model_copy(update={"minibatch": 5})
    fit_critic(policy, capture, batch, credit, config, WarmupConfig(w_frac=w_frac), 0)
    assert len(capture.gradients) == steps
    rows = torch.repeat_interleave(batch.trained_rows, batch.sampled_per_row[batch.trained_rows])
    assert len(set(seen)) == len(seen)
    assert len(set(rows[seen].tolist())) == {0.1: 2, 0.5: 7, 1.0: 13}[w_frac]


# -- next prompts


def test_rows_that_only_hold_a_next_prompt_never_change_a_gradient(tiny, critic):
    """The very credit decides: with other next prompts, or without any, what is learned is the same."""
    policy = make_policy(tiny[0], critic)
    segments = make_segments()
    batch, credit = opinions(policy, segments)
    expected = learn(policy, batch, credit)
    assert len(batch.row_lengths) > len(batch.trained_rows)
    others = [replace(one, final_prompt_ids=(200, *ids(3, 50)) if one.final_prompt_ids else ()) for one in segments]
    without = [replace(one, end="terminated", final_prompt_ids=()) for one in segments]
    for changed in (others, without):
        assert_same(learn(policy, replace(pack(changed), logprobs=batch.logprobs), credit), expected, 0)


@pytest.mark.parametrize(("critic", "held"), [("separate", [{"critic"}, {"actor"}]), ("shared", [{"actor", "critic"}])])
def test_gradients_of_one_model_are_held_at_a_time(tiny, critic, held):
    policy = make_policy(tiny[0], critic)
    batch, credit = opinions(policy, make_segments())
    seen: list[set[str]] = []

    class Watched(Optimizers):
        def step(self, *models: str, scheduled: bool = True) -> dict[str, float]:
            learners = {"actor": policy.actor_parameters(), "critic": policy.critic_parameters()}
            seen.append({name for name, own in learners.items() if any(p.grad is not None for p in own)})
            assert set(models) == seen[-1]
            return super().step(*models, scheduled=scheduled)

    config = UPDATE.model_copy(update={"minibatch": 5})
    update(policy, Watched(policy, config), batch, credit, config, KLConfig(), seed=0)
    assert seen == held * 3


# -- the reference


def test_the_reference_stays_where_the_policy_began(tiny, critic):
    policy = make_policy(tiny[0], critic, reference=True)
    batch, credit = opinions(policy, make_segments())
    before = policy.logprobs(batch, 500)
    assert torch.equal(policy.score(batch, 500).reference, before)  # type: ignore[arg-type]
    update(policy, Optimizers(policy, UPDATE), batch, credit, UPDATE, KLConfig(), seed=0)
    assert torch.equal(policy.score(batch, 500).reference, before)  # type: ignore[arg-type]
    assert not torch.allclose(policy.logprobs(batch, 500), before, atol=1e-3)
    assert not any(name.startswith("_reference") for name in policy.state_dict())


def test_a_coefficient_of_zero_is_as_good_as_no_reference(tiny, critic):
    """Credit, figures and weights after an update, bit for bit."""
    trained = []
    for reference in (True, False):
        policy = make_policy(tiny[0], critic, reference)
        with torch.no_grad():
            policy.actor.lm_head.weight.mul_(1.1)  # away from the reference
        batch, _ = opinions(policy, make_segments())
        scores = policy.score(batch, 500)
        assert (scores.reference is not None) == reference
        credit = assign_credit(batch, scores, DualGAE(), 0.0)
        assert (credit.kl.abs().max() > 0) == reference
        stats = update(policy, Optimizers(policy, UPDATE), batch, credit, UPDATE, KLConfig(reward=0), seed=0)
        trained.append((credit, stats, policy.state_dict()))
    (one, stats, weights), (other, other_stats, other_weights) = trained
    assert torch.equal(one.advantages, other.advantages)
    assert torch.equal(one.returns, other.returns)
    assert stats == other_stats
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_the_penalty_is_paid_token_by_token(tiny):
    policy = make_policy(tiny[0], "shared", reference=True)
    batch, _ = opinions(policy, make_segments())
    reference = batch.logprobs - torch.linspace(-1, 1, len(batch.logprobs))
    seen = []

    class Keep:
        critic = True
        groups = False
        whiten = False

        def __call__(self, streams: Any) -> Estimate:
            seen.append(streams.rewards)
            return Estimate(streams.rewards, streams.rewards)

    scores = policy.score(batch, 500, reference=False)
    assign_credit(batch, Scores(scores.values, scores.bootstraps, reference), Keep(), 0.2)
    assert torch.allclose(seen[0], batch.rewards - 0.2 * torch.linspace(-1, 1, len(batch.logprobs)), atol=1e-6)


def test_arithmetic_is_as_before_when_a_line_has_been_read(tiny):
    """Read outside of a pass over a batch, too, where one autocast is entered within another."""
    policy = Policy(deepcopy(tiny[0]), precision=torch.autocast("cpu", torch.bfloat16))
    batch = pack(make_segments())
    with torch.no_grad():
        for micro in batch.micros(batch.trained_rows, 10_000, finals=False):
            policy(micro)
            policy.values(micro)
    assert not torch.is_autocast_enabled("cpu")
