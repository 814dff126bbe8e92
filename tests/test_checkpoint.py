from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from turnwise import checkpoint

TENSORS = {
    "policy": {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([0.1, -0.0, float("inf")])},
    "moments": {"0.step": torch.tensor(3.0), "0.mean": torch.tensor([1.5, 2.5], dtype=torch.bfloat16)},
    "nothing": {},
}
STATE = {"step": 7, "slots": [{"past": [], "seed": 2**61 + 1}], "kl": 1e-3, "text": "ü\n", "none": None}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def flip(file: Path, place: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    file.write_bytes(data)


# -- round trips


def test_what_is_saved_is_loaded(tmp_path):
    target = checkpoint.save(tmp_path, "000007", TENSORS, STATE)
    tensors, state = checkpoint.load(target)
    assert target == tmp_path / "000007"
    assert tensors.keys() == TENSORS.keys()
    assert all(same(tensors[name], TENSORS[name]) for name in TENSORS)
    assert state == STATE


def test_one_group_is_loaded_without_the_others(tmp_path):
    target = checkpoint.save(tmp_path, "x", TENSORS, STATE)
    (target / "moments.safetensors").unlink()
    tensors, state = checkpoint.load(target, "policy")
    assert list(tensors) == ["policy"] and same(tensors["policy"], TENSORS["policy"]) and state == STATE
    flip(target / "policy.safetensors", 0.5)
    with pytest.raises(ValueError, match=r"policy\.safetensors is damaged"):
        checkpoint.load(target, "policy")


def test_parameters_that_are_transposed_or_trained_are_saved_too(tmp_path):
    weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    target = checkpoint.save(tmp_path, "x", {"policy": {"w": weight, "t": torch.arange(6.0).reshape(2, 3).T}}, {})
    tensors = checkpoint.load(target)[0]["policy"]
    assert torch.equal(tensors["w"], weight.detach())
    assert torch.equal(tensors["t"], weight.detach().T)


def test_saving_over_an_existing_name_replaces_it(tmp_path):
    checkpoint.save(tmp_path, "x", TENSORS, {"step": 1})
    target = checkpoint.save(tmp_path, "x", {"policy": {"b": torch.ones(1)}}, {"step": 2})
    tensors, state = checkpoint.load(target)
    assert list(tensors) == ["policy"]
    assert list(tensors["policy"]) == ["b"]
    assert state == {"step": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_parameters_are_loaded_in_place(tmp_path):
    torch.manual_seed(0)
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    shared = other.weight
    target = checkpoint.save(tmp_path, "x", {"policy": dict(model.named_parameters())}, {})
    checkpoint.load_parameters(other, checkpoint.load(target)[0]["policy"])
    assert other.weight is shared
    assert shared.requires_grad
    assert torch.equal(shared, model.weight)
    assert torch.equal(other.bias, model.bias)


def make(fused: bool) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01, fused=fused)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(data) - data.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_training_goes_on_bit_for_bit(tmp_path, fused):
    straight, optimizer = make(fused)
    train(straight, optimizer, range(3))

    model, optimizer = make(fused)
    train(model, optimizer, range(1))
    tensors = {"policy": dict(model.named_parameters()), "moments": checkpoint.optimizer_tensors(optimizer)}
    target = checkpoint.save(tmp_path, "x", tensors, {})

    resumed, optimizer = make(fused)
    train(resumed, optimizer, range(50, 52))  # whatever was there before
    loaded, _ = checkpoint.load(target)
    checkpoint.load_parameters(resumed, loaded["policy"])
    checkpoint.load_optimizer(optimizer, loaded["moments"])
    train(resumed, optimizer, range(1, 3))
    assert same(resumed.state_dict(), straight.state_dict())


def test_an_optimizer_that_never_stepped_is_saved_and_loaded(tmp_path):
    straight, optimizer = make(False)
    target = checkpoint.save(tmp_path, "x", {"moments": checkpoint.optimizer_tensors(optimizer)}, {})
    resumed, fresh = make(False)
    checkpoint.load_optimizer(fresh, checkpoint.load(target)[0]["moments"])
    train(straight, optimizer, range(2))
    train(resumed, fresh, range(2))
    assert same(resumed.state_dict(), straight.state_dict())


def test_settings_of_an_optimizer_come_from_the_configuration():
    model, optimizer = make(False)
    train(model, optimizer, range(1))
    moments = checkpoint.optimizer_tensors(optimizer)
    slower = torch.optim.AdamW(model.parameters(), lr=0.001)
    checkpoint.load_optimizer(slower, moments)
    assert slower.param_groups[0]["lr"] == 0.001


# -- crashes and damage


def test_a_draft_left_behind_is_ignored(tmp_path):
    (tmp_path / "000009.draft").mkdir()
    (tmp_path / "000009.draft" / "junk").write_text("half")
    assert checkpoint.newest(tmp_path) is None
    checkpoint.save(tmp_path, "000008", TENSORS, STATE)
    assert checkpoint.newest(tmp_path) == tmp_path / "000008"
    target = checkpoint.save(tmp_path, "000009", TENSORS, STATE)
    assert checkpoint.newest(tmp_path) == target
    assert not (target / "junk").exists()


def test_a_file_of_a_file_manager_is_left_alone(tmp_path):
    for step in "123":
        checkpoint.save(tmp_path, step, TENSORS, STATE)
    for stray in (".DS_Store", "9.txt"):
        (tmp_path / stray).touch()
    assert checkpoint.newest(tmp_path) == tmp_path / "3"
    checkpoint.prune(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".DS_Store", "3", "9.txt"]


def test_no_checkpoints_is_no_checkpoint(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "nowhere") is None


def test_a_crash_while_writing_leaves_the_one_before(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, "1", TENSORS, {"step": 1})

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save_file", crash)
        checkpoint.save(tmp_path, "2", TENSORS, {"step": 2})
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.load(newest)[1] == {"step": 1}


def test_a_crash_while_replacing_leaves_one_of_the_two(tmp_path, monkeypatch):
    rename = Path.rename
    for calls in range(1, 5):
        folder = tmp_path / str(calls)
        checkpoint.save(folder, "x", TENSORS, {"step": 1})
        left = calls

        def crash(self, target):
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", crash)
            try:
                checkpoint.save(folder, "x", TENSORS, {"step": 1})
            except KeyboardInterrupt:
                newest = checkpoint.newest(folder)
                assert newest is not None
                assert checkpoint.load(newest)[1] == {"step": 1}


@pytest.mark.parametrize("name", ["policy.safetensors", "moments.safetensors", "state.json"])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_flipped_bit_is_found_and_its_file_named(tmp_path, name, place):
    target = checkpoint.save(tmp_path, "x", TENSORS, STATE)
    flip(target / name, place)
    with pytest.raises(ValueError, match=rf"{name} is damaged") as caught:
        checkpoint.load(target)
    assert str(target) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_file_is_found_and_named(tmp_path, name, share):
    target = checkpoint.save(tmp_path, "x", TENSORS, STATE)
    data = (target / name).read_bytes()
    (target / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        checkpoint.load(target)


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", "manifest.json"])
def test_a_missing_file_is_found_and_named(tmp_path, name):
    target = checkpoint.save(tmp_path, "x", TENSORS, STATE)
    (target / name).unlink()
    with pytest.raises(ValueError, match=name):
        checkpoint.load(target)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.4, 0.7, 1.0])
def test_a_damaged_manifest_is_found(tmp_path, place):
    target = checkpoint.save(tmp_path, "x", TENSORS, STATE)
    flip(target / "manifest.json", place)
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(target)


# -- which are kept


def test_prune_keeps_the_newest(tmp_path):
    for step in (3, 1, 12, 2):
        checkpoint.save(tmp_path, f"{step:06}-0000-0000", {}, {"step": step})
    (tmp_path / "000099-0000-0000.draft").mkdir()
    checkpoint.prune(tmp_path, 2)
    left = sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".draft")
    assert left == ["000003-0000-0000", "000012-0000-0000"]
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.load(newest)[1] == {"step": 12}
    checkpoint.prune(tmp_path, 5)
    assert len([path for path in tmp_path.iterdir() if path.suffix != ".draft"]) == 2


def test_prune_leaves_no_draft_and_nothing_half_deleted(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, f"{step:06}-0000-0000", {"a": {"x": torch.ones(2)}}, {})
    (tmp_path / "000009-0000-0000.draft").mkdir()
    gone = []
    remove = checkpoint.shutil.rmtree
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **how: gone.append(path.name) or remove(path, **how))
    checkpoint.prune(tmp_path, 2)
    assert sorted(gone) == ["000001-0000-0000.draft", "000009-0000-0000.draft"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002-0000-0000", "000003-0000-0000"]


def test_a_checkpoint_that_the_run_has_let_go_of_is_not_called_damaged(tmp_path):
    checkpoint.save(tmp_path, "000001-0000-0000", {}, {})
    checkpoint.save(tmp_path, "000002-0000-0000", {}, {})
    checkpoint.prune(tmp_path, 1)
    with pytest.raises(ValueError, match=r"000001-0000-0000 is gone, as the run trains on .* ask again"):
        checkpoint.load(tmp_path / "000001-0000-0000")


def test_prune_takes_away_a_draft_of_what_it_is_to_take_away(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, f"{step:06}-0000-0000", {}, {})
    (tmp_path / "000001-0000-0000.draft").mkdir()
    (tmp_path / "000001-0000-0000.draft" / "half").write_text("")
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["000002-0000-0000"]
