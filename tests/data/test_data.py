"""From a recipe to two sets of samples that do not meet."""

import json
from typing import Any

import pytest

from turnwise.components import Component
from turnwise.config import DataConfig
from turnwise.data import load_data


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def prompts(samples) -> list[str]:
    return [sample.prompt[0]["content"] for sample in samples]


NUMBERS = [{"prompt": f"number {n}"} for n in range(400)]


def test_two_files_are_the_two_splits(write):
    train = [write("a.jsonl", NUMBERS[:3]), write("b.jsonl", NUMBERS[3:5])]
    data = load_data(DataConfig(train=train, test=[write("c.jsonl", NUMBERS[5:7])]))
    assert prompts(data.train) == [f"number {n}" for n in range(5)]
    assert [sample.index for sample in data.train] == [0, 1, 2, 3, 4]
    assert (sorted(prompts(data.test)), data.shared) == (["number 5", "number 6"], 0)


def test_what_is_tested_first_is_of_all_files_however_they_are_sorted(write):
    train, one, other = write("a.jsonl", NUMBERS[:1]), write("b.jsonl", NUMBERS[1:200]), write("c.jsonl", NUMBERS[200:])
    data, again = (load_data(DataConfig(train=[train], test=files)) for files in ([one, other], [other, one]))
    assert prompts(data.test) == prompts(again.test) and len(data.test) == 399
    early = sum(int(prompt.split()[1]) < 200 for prompt in prompts(data.test)[:100])
    assert 30 < early < 70


def test_what_is_tested_is_not_trained_on(write):
    data = load_data(DataConfig(train=[write("a.jsonl", NUMBERS[:5])], test=[write("b.jsonl", NUMBERS[3:9])]))
    assert (prompts(data.train), data.shared) == (["number 0", "number 1", "number 2"], 2)


def test_a_share_is_held_out_by_the_prompt_alone(write):
    config = DataConfig(train=[write("a.jsonl", NUMBERS + NUMBERS[:50])])
    data = load_data(config)
    assert config.share_held_out == 0.1
    assert 20 <= len(set(prompts(data.test))) <= 60
    assert not set(prompts(data.train)) & set(prompts(data.test))
    assert len(data.train) + len(data.test) == 450

    elsewhere = load_data(DataConfig(train=[write("b.jsonl", NUMBERS[::-2])]))
    assert set(prompts(elsewhere.test)) == set(prompts(data.test)) & {row["prompt"] for row in NUMBERS[::-2]}


def test_a_smaller_share_is_part_of_a_larger_one(write):
    path = write("a.jsonl", NUMBERS)
    small, large = (set(prompts(load_data(DataConfig(train=[path], held_out=share)).test)) for share in (0.1, 0.4))
    assert small < large


def test_max_samples_are_the_first_to_train_on(write):
    config = {"train": [write("a.jsonl", NUMBERS)], "held_out": 0.2}
    whole, part = load_data(DataConfig(**config)), load_data(DataConfig(**config, max_samples=7))
    assert (part.train, part.test) == (whole.train[:7], whole.test)


def test_made_rows_are_converted():
    config = {"generate": {"use": "arithmetic", "level": 1, "train": 20, "test": 5}, "convert": {"use": "gsm8k"}}
    data = load_data(DataConfig.model_validate(config))
    assert (len(data.train), len(data.test), data.train[0].tools) == (20, 5, ("calculator",))


class Shout:
    """A converter of somebody else."""

    def __call__(self, row, index, split):
        return {"prompt": f"{split} {index} {row['text'].upper()}"}


class Lose:
    def __call__(self, row, index, split):
        return None


def test_a_converter_of_ones_own(write):
    config = {"train": write("a.jsonl", [{"text": "a"}]), "test": write("b.jsonl", [{"text": "b"}])}
    data = load_data(DataConfig.model_validate({**config, "convert": {"use": f"{__name__}:Shout"}}))
    assert (prompts(data.train), prompts(data.test)) == (["train 0 A"], ["test 0 B"])


@pytest.mark.parametrize(
    ("tree", "rows", "words"),
    [
        ({}, [], ["data.held_out=0.1", "0 samples", "data.test"]),
        ({}, NUMBERS[:1], ["data.held_out=0.1 of 1 samples", "data.test"]),
        ({}, [{"prompt": "a"}, {"prompt": 3}], ["a.jsonl, line 2", "column prompt is 3"]),
        ({}, [{"prompt": "a"}, 3], ["a.jsonl, line 2 is 3", "a row is an object with columns"]),
        ({"convert": {"use": f"{__name__}:Shout"}}, [{}], ["a.jsonl, line 1 cannot be converted: KeyError: 'text'"]),
        ({"convert": {"use": f"{__name__}:Lose"}}, [{}], ["a.jsonl, line 1 is None", "object"]),
        ({"convert": {"use": "gsm8k"}}, [{"prompt": "a"}], ["a.jsonl, line 1", "cannot be converted", "question"]),
        ({"test": ["{a}"]}, NUMBERS, ["no train samples"]),
        ({"test": ["nowhere"]}, NUMBERS, ["data.test is 'nowhere'"]),
    ],
)
def test_a_mistake_is_one_sentence(write, tree, rows, words):
    path = write("a.jsonl", rows)
    tree = {**tree, **({"test": [path if one == "{a}" else one for one in tree["test"]]} if "test" in tree else {})}
    with pytest.raises(ValueError) as caught:
        load_data(DataConfig.model_validate({"train": path, **tree}))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


class Strange:
    """Makes rows as somebody's first try may."""

    def __init__(self, how: str):
        self.how = how

    def rows(self, split: str) -> Any:
        if self.how == "none":
            return None
        if self.how == "late":
            return self._late()
        return {"train": []}[split]

    def _late(self) -> Any:
        yield {"prompt": "One?"}
        raise RuntimeError("the file is gone")


class Rowless:
    pass


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ({"use": f"{__name__}:Strange", "how": "none"}, "cannot make train rows: TypeError"),
        ({"use": f"{__name__}:Strange", "how": "late"}, "cannot make train rows: RuntimeError: the file is gone"),
        ({"use": f"{__name__}:Strange", "how": "split"}, "cannot make test rows: KeyError: 'test'"),
        ({"use": f"{__name__}:Rowless"}, "cannot make train rows: AttributeError"),
    ],
)
def test_rows_that_cannot_be_made_are_one_sentence(use, said):
    with pytest.raises(ValueError, match=f"data.generate: {use['use']} {said}"):
        load_data(DataConfig(generate=Component.model_validate(use)))
