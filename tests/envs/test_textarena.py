"""TextArena: rules, levels by seed, outcomes, and random numbers that nobody else shares."""

import random
import threading

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.global_random import GlobalRandom
from turnwise.envs.textarena import TextArena

pytest.importorskip("textarena")
nltk = pytest.importorskip("nltk")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """NLTK's lists of words, far smaller, where its downloads would put them."""
    tmp_path = tmp_path_factory.mktemp("nltk_data")  # one for all tests: NLTK reads it once
    corpus, tagger = tmp_path / "corpora" / "words", tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    corpus.mkdir(parents=True)
    tagger.mkdir(parents=True)
    known = ["apple", "baker", "chair", "dream", "eagle", "flame", "grape", "house"]
    for name in ("en", "en-basic"):
        (corpus / name).write_text("\n".join(known) + "\n")
    for part, content in (("weights", "{}"), ("classes", '["NN"]')):
        (tagger / f"averaged_perceptron_tagger_eng.{part}.json").write_text(content)
    tags = ", ".join(f'"{word}": "NN"' for word in [*known, "test"])
    (tagger / "averaged_perceptron_tagger_eng.tagdict.json").write_text(f"{{{tags}}}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(tmp_path)])
        patch.setattr(nltk, "download", lambda *_, **__: False)
        yield known


def play(env: TextArena, seed: int, actions: list[str]) -> list:
    return [env.reset(seed=seed)[0], *(env.step(action) for action in actions)]


@pytest.mark.parametrize("game", ["Mastermind-v0", "2048-v0-easy", "FrozenLake-v0-random", "Sudoku-v0-easy"])
def test_it_is_a_gymnasium_environment(game):
    check_env(TextArena(game), skip_render_check=True)


@pytest.mark.parametrize("game", ["2048-v0-easy", "FrozenLake-v0-random", "Sudoku-v0-easy"])
def test_the_seed_decides_the_level(game):
    env, other = TextArena(game), TextArena(game)
    firsts = [env.reset(seed=seed)[0]["text"] for seed in (1, 2, 3, 4, 1)]
    assert firsts[0] == firsts[-1] == other.reset(seed=1)[0]["text"]
    assert len(set(firsts)) > 2


def test_what_is_drawn_during_a_game_is_the_seed_s_too():
    moves = ["[up]", "[left]", "[down]", "[right]"] * 5
    alone = play(TextArena("2048-v0-easy"), 3, moves)
    env, noisy = TextArena("2048-v0-easy"), TextArena("2048-v0-easy")
    together = [env.reset(seed=3)[0]]
    for move in moves:
        noisy.reset(seed=9)
        random.random()
        together.append(env.step(move))
    assert together == alone


def test_games_in_many_threads_are_what_they_are_alone():
    moves = ["[up]", "[left]", "[down]", "[right]"] * 5
    alone = {seed: play(TextArena("2048-v0-easy"), seed, moves) for seed in range(4)}
    found = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: play(TextArena("2048-v0-easy"), seed, moves)}))
        for seed in alone
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_lent_random_numbers_leave_those_of_others_as_they_were():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), random.random(), np.random.random(), np.random.random()
    mine = GlobalRandom(2)
    random.seed(1)
    np.random.seed(1)
    found = [random.random(), 0.0, np.random.random(), 0.0]
    with mine:
        first = random.random(), np.random.random()
    found[1], found[3] = random.random(), np.random.random()
    with mine:
        second = random.random(), np.random.random()
    assert tuple(found) == expected
    with (again := GlobalRandom(2)):
        assert (random.random(), np.random.random()) == first
    with again:
        assert (random.random(), np.random.random()) == second != first


def test_a_game_that_is_won_is_a_success():
    env = TextArena("GuessTheNumber-v0")
    observation, _ = env.reset(seed=4)
    assert "between 1 and 20" in observation["instructions"]
    low, high = 1, 20
    for _ in range(10):
        guess = (low + high) // 2
        observation, reward, terminated, truncated, info = env.step(f"[{guess}]")
        if terminated:
            break
        assert (reward, truncated, info) == (0.0, False, {"success": False})
        low, high = (guess + 1, high) if "higher" in observation["text"] else (low, guess - 1)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"success": True, "progression": 1.0})
    assert "Congratulations" in observation["text"]


def test_a_lost_game_says_how_far_it_went():
    env = TextArena("Mastermind-v0")
    env.reset(seed=1)
    first = env.step("nonsense")
    assert "invalid" in first[0]["text"]
    assert first[1:] == (0.0, False, False, {"success": False})
    _, reward, terminated, truncated, info = env.step("more nonsense")
    assert (terminated, truncated) == (True, False)
    assert info == {"success": False, "progression": max(reward, 0.0)}


def test_a_limit_of_turns_of_ours_truncates():
    env = TextArena("Mastermind-v0", max_turns=2)
    env.reset(seed=1)
    assert [env.step(guess)[2:4] for guess in ("1 2 3 4", "4 3 2 1")] == [(False, False), (False, True)]


def test_options_are_the_game_s_own():
    observation, _ = TextArena("GuessTheNumber-v0", max_number=7).reset(seed=1)
    assert "between 1 and 7" in observation["instructions"]


@pytest.mark.parametrize("game", ["Wordle-v0", "Hangman-v0"])
def test_games_of_words_are_won_by_the_word(words, game):
    env = TextArena(game)
    winners = set()
    for seed in range(6):
        for word in words:
            env.reset(seed=seed)
            *_, terminated, _, info = env.step(word)
            if terminated and info["success"]:
                winners.add((seed, word))
    assert {seed for seed, _ in winners} == set(range(6))
    assert 1 < len({word for _, word in winners}) <= 6 == len(winners)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "TicTacToe-v0"}, "'TicTacToe-v0', which is not for one player alone"),
        ({"game": "PublicGoodsGame-v0"}, "not for one player alone"),
        ({"game": "Wordl-v0"}, "'Wordl-v0', which TextArena cannot make: .*not found"),
        ({"game": "TwentyQuestions-v0"}, "cannot make: .*API key"),
        ({"game": "Mastermind-v0", "colours": 3}, "cannot make: .*colours"),
        ({"game": "Mastermind-v0", "max_turns": 0}, "max_turns is 0"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ValueError, match=message) as caught:
        TextArena(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("game", ["Crosswords-v0", "LogicPuzzle-v0", "WordSearch-v0"])
def test_games_that_go_by_the_order_of_a_set_want_it_fixed(game, monkeypatch):
    for chosen in ("random", None):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if chosen:
            monkeypatch.setenv("PYTHONHASHSEED", chosen)
        with pytest.raises(ValueError, match="start it with PYTHONHASHSEED=0"):
            TextArena(game)


def test_no_game_counts_on_from_the_one_before(words, monkeypatch):
    env = TextArena("Mastermind-v0")
    first = env.reset(seed=3)[0]
    env._bare.lives = 20
    env._fresh["lives"] = 20
    env._bare.lives = 3
    assert env.reset(seed=3)[0] == first
    assert env._bare.lives == 20
