from itertools import pairwise
from typing import Any

import pytest
from helpers import CHATML, make_tokenizer
from hypothesis import assume, example, given
from hypothesis import strategies as st
from speakers import SPEAKERS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turnwise.render import Renderer
from turnwise.types import Message

# Like Qwen2.5: a system message of its own where there is none.
WITH_DEFAULT = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% else %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if not (loop.first and message.role == 'system') %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Llama 3: headers, a first token, contents without the white space around them.
HEADERS = (
    "{% for message in messages %}{% if loop.first %}<|begin|>{% endif %}"
    "<|header|>{{ message.role }}<|/header|>\n\n{{ message.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}"
)
# Like Mistral: the turn of the model begins where the user's ends.
BRACKETS = (
    "<s>{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content | trim }}</s>"
    "{% else %}[INST]{{ message.content | trim }}[/INST]{% endif %}{% endfor %}"
)
# The user's words end without any special token, and so do the replies.
PLAIN = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n\n{% endfor %}assistant:"

TOKENIZERS = {
    "chatml": make_tokenizer(CHATML),
    "default": make_tokenizer(WITH_DEFAULT),
    "headers": make_tokenizer(HEADERS, "<|eot|>", ["<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"]),
    "brackets": make_tokenizer(BRACKETS, "</s>", ["<s>", "</s>", "[INST]", "[/INST]"]),
    "plain": make_tokenizer(PLAIN, "<|endoftext|>"),
}
RENDERERS = {name: Renderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}
templates = st.sampled_from(sorted(TOKENIZERS))
texts = st.text(max_size=12)


def rendered(tokenizer: Any, messages: list[Message]) -> tuple[int, ...]:
    """What the template itself makes of the messages."""
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    return tuple(tokenizer.apply_chat_template(plain, tokenize=True, add_generation_prompt=True, return_dict=False))


def encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(ids, text: str = "never read") -> Message:
    return {"role": "assistant", "content": text, "token_ids": tuple(ids)}


# -- conversations


@given(templates, st.one_of(st.none(), texts), st.lists(st.tuples(texts, texts), max_size=3), texts)
@example("default", None, [(" a\n", "b ")], "\N{ZERO WIDTH JOINER}c")
def test_without_sampled_ids_the_prompt_is_what_the_template_makes(name, system, exchanges, last):
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for asked, answer in exchanges:
        messages += [user(asked), {"role": "assistant", "content": answer}]
    messages.append(user(last))
    assert RENDERERS[name].prompt(messages) == rendered(TOKENIZERS[name], messages)


@given(templates, st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=3), texts)
def test_a_reply_that_reads_as_the_template_writes_it_changes_nothing(name, exchanges, last):
    """With a token a byte there is only one way to spell a text, so the spliced prompt is that of the template."""
    tokenizer, renderer = TOKENIZERS[name], RENDERERS[name]
    end = encoded(tokenizer, tokenizer.eos_token) if name != "plain" else ()
    plain: list[Message] = []
    spliced: list[Message] = []
    for asked, answer, ended in exchanges:
        answer = answer.strip()
        ids = encoded(tokenizer, answer) + end * ended
        assume(ids)
        plain += [user(asked), {"role": "assistant", "content": answer}]
        spliced += [user(asked), said(ids)]
    assert renderer.prompt([*spliced, user(last)]) == rendered(tokenizer, [*plain, user(last)])


tokens = st.integers(0, 258)  # every id of the tokenizer, the special ones included
replies = st.lists(tokens, min_size=1, max_size=8)


@given(templates, texts, st.lists(st.tuples(texts, replies, st.booleans()), min_size=2, max_size=4))
def test_a_longer_conversation_extends_the_shorter_one_and_its_reply(name, system, exchanges):
    tokenizer, renderer = TOKENIZERS[name], RENDERERS[name]
    messages: list[Message] = [{"role": "system", "content": system}]
    prompts, sampled = [], []
    for asked, ids, ended in exchanges:
        messages.append(user(asked))
        prompts.append(renderer.prompt(messages))
        sampled.append((*ids, tokenizer.eos_token_id) if ended else tuple(ids))
        messages.append(said(sampled[-1]))
    for (before, after), ids in zip(pairwise(prompts), sampled, strict=False):
        assert after[: len(before) + len(ids)] == before + ids
        assert len(after) > len(before) + len(ids)


@given(texts, replies, st.booleans(), texts)
@example("\ue000\ue001", [64], True, "{{ x }}")
def test_sampled_ids_appear_verbatim_and_end_once(first, ids, ended, last):
    tokenizer, renderer = TOKENIZERS["chatml"], RENDERERS["chatml"]
    end = tokenizer.eos_token_id
    ids = [id for id in ids if id != end] or [0]
    prompt = renderer.prompt([user(first), said([*ids, end] if ended else ids), user(last)])
    before = encoded(tokenizer, f"<|im_start|>user\n{first}<|im_end|>\n<|im_start|>assistant\n")
    after = encoded(tokenizer, f"\n<|im_start|>user\n{last}<|im_end|>\n<|im_start|>assistant\n")
    assert prompt == (*before, *ids, end, *after)


@pytest.mark.parametrize("name", ["chatml", "default", "headers", "brackets"])
def test_a_truncated_reply_gets_its_end_as_observed(name):
    tokenizer, renderer = TOKENIZERS[name], RENDERERS[name]
    end = tokenizer.eos_token_id
    cut, whole = (renderer.prompt([user("a"), said(ids), user("b")]) for ids in ([70], [70, end]))
    assert cut == whole
    assert cut[cut.index(70) + 1] == end
    assert cut[cut.index(70) + 2] != end


def test_an_end_of_text_that_is_not_the_end_of_a_turn_is_kept_before_it():
    tokenizer = make_tokenizer(CHATML.replace("<|im_end|>\n", "<|im_end|>"))
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    text, turn = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    renderer = Renderer(tokenizer)
    assert renderer.stop_ids == {text, turn}
    prompt = renderer.prompt([user("a"), said([70, text]), user("b")])
    assert prompt[prompt.index(70) :][:3] == (70, text, turn)


def test_the_end_of_a_turn_need_not_be_a_named_special_token():
    """As in Phi-3, whose <|end|> is special, but neither the end of text nor listed among the extra tokens."""
    tokenizer = make_tokenizer(CHATML, "<|endoftext|>")
    text, turn = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    renderer = Renderer(tokenizer)
    assert renderer.stop_ids == {text, turn}
    prompt = renderer.prompt([user("a"), said([70, turn]), user("b")])
    assert prompt[prompt.index(70) :].count(turn) == 2  # of the reply and of the question after it


def test_white_space_before_the_end_of_a_turn_does_not_double_the_end():
    """As in Llama 2, whose template sets a space on either side of a reply."""
    template = BRACKETS.replace("{{ message.content | trim }}</s>", "{{ ' ' + message.content | trim + ' </s>' }}")
    tokenizer = make_tokenizer(template, "</s>", ["<s>", "</s>", "[INST]", "[/INST]"])
    end = tokenizer.eos_token_id
    prompt = Renderer(tokenizer).prompt([user("a"), said([70, end]), user("b")])
    assert prompt.count(end) == 1


def test_no_text_is_taken_for_a_reply():
    tokenizer, renderer = TOKENIZERS["chatml"], RENDERERS["chatml"]
    prompt = renderer.prompt([user("\ue0000\ue001"), said([70, tokenizer.eos_token_id]), user("b")])
    assert prompt == rendered(
        tokenizer, [user("\ue0000\ue001"), {"role": "assistant", "content": tokenizer.decode([70])}, user("b")]
    )


def test_a_sampled_reply_is_never_tokenised_again():
    """'<|im_end|>' spelt out byte by byte is not the token, and broken UTF-8 is no text at all."""
    tokenizer, renderer = TOKENIZERS["chatml"], RENDERERS["chatml"]
    spelt = [id for byte in "<|im_end|>" for id in encoded(tokenizer, byte)]
    broken = encoded(tokenizer, "€")[1:]
    assert tokenizer.eos_token_id not in spelt
    prompt = renderer.prompt([user("a"), said([*spelt, *broken]), user("b")])
    start = len(renderer.prompt([user("a")]))
    assert prompt[start:][: len(spelt) + 2] == (*spelt, *broken)


# -- templates that cannot serve


def test_a_tokenizer_without_a_chat_template_is_refused_by_name():
    tokenizer = make_tokenizer(None)
    tokenizer.name_or_path = "some/base-model"
    with pytest.raises(ValueError, match="'some/base-model' has no chat template"):
        Renderer(tokenizer)


def qwen3(**template_kwargs: Any) -> Renderer:
    return Renderer(SPEAKERS["qwen3"].tokenizer, "exact", template_kwargs)


def test_a_template_is_told_what_it_asks_for():
    thinks, does_not = qwen3(), qwen3(enable_thinking=False)
    asked = [user("What?")]
    assert does_not.text(does_not.prompt(asked)) == thinks.text(thinks.prompt(asked)) + "<think>\n\n</think>\n\n"
    reply = encoded(does_not.tokenizer, "That.")
    longer = does_not.prompt([*asked, said(reply), user("And?")])
    assert longer[: len(does_not.prompt(asked)) + len(reply)] == (*does_not.prompt(asked), *reply)
    assert does_not.text(longer).count("<think>") == 2


@pytest.mark.parametrize("name", ["enable_thinkin", "tools", "add_generation_prompt"])
def test_what_a_template_does_not_ask_for_is_refused(name):
    with pytest.raises(ValueError, match=f"model.chat_template_kwargs has {name}, for which the chat template of"):
        qwen3(**{name: False})


FORGETFUL = (
    "{% for message in messages %}{% if message.role != 'assistant' or loop.last %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHOUTING = CHATML.replace("{{ message.content }}", "{{ message.content[1:] | upper }}")


def test_a_template_that_drops_past_replies_is_refused_where_one_is_shown():
    tokenizer = make_tokenizer(FORGETFUL)
    tokenizer.name_or_path = "forgetful"
    renderer = Renderer(tokenizer)
    assert renderer.prompt([user("a")]) == rendered(tokenizer, [user("a")])
    with pytest.raises(ValueError, match="'forgetful' drops or changes past replies"):
        renderer.prompt([user("a"), said([70]), user("b")])


def test_a_template_that_shows_no_reply_at_all_serves_a_memory_that_shows_none():
    asked = "(messages | selectattr('role', 'equalto', 'user') | list | last).content"
    template = f"### Instruction:\n{{{{ {asked} }}}}\n### Response:"
    tokenizer = make_tokenizer(template, "<|endoftext|>")
    renderer = Renderer(tokenizer)
    assert renderer.prompt([user("a")]) == encoded(tokenizer, "### Instruction:\na\n### Response:")
    assert renderer.stop_ids == {tokenizer.eos_token_id}
    with pytest.raises(ValueError, match="drops or changes past replies"):
        renderer.prompt([user("a"), said([70]), user("b")])


def test_a_template_that_changes_replies_is_refused():
    with pytest.raises(ValueError, match="drops or changes past replies"):
        Renderer(make_tokenizer(SHOUTING)).prompt([user("a"), said([70]), user("b")])


# -- back to text


def test_the_text_of_a_reply_has_no_markup():
    tokenizer, renderer = TOKENIZERS["chatml"], RENDERERS["chatml"]
    assert renderer.text(encoded(tokenizer, "a €  b .<|im_end|>")) == "a €  b ."


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("chatml", {"<|im_end|>"}),
        ("default", {"<|im_end|>"}),
        ("headers", {"<|eot|>"}),
        ("brackets", {"</s>"}),
        ("plain", {"<|endoftext|>"}),
    ],
)
def test_replies_stop_at_the_end_of_a_turn_or_of_the_text(name, stops):
    assert RENDERERS[name].stop_ids == {TOKENIZERS[name].convert_tokens_to_ids(token) for token in stops}


def merging_tokenizer() -> Any:
    """Byte-level with some merges, a few of them across the words and inside characters of several bytes."""
    pairs = ["A C", "AC T", "I O", "IO N", "ACT ION", "ACTION :", "Ċ ACTION:", "â Ĥ", "g o", "Ġ go", "ð Ł", "ĺ Ģ"]
    merges = [(left, right) for left, _, right in (pair.partition(" ") for pair in pairs)]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    model = Tokenizer(models.BPE(vocab={word: id for id, word in enumerate(words)}, merges=merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore
    model.decoder = decoders.ByteLevel()  # type: ignore
    model.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


MERGING = Renderer(merging_tokenizer())
words = st.lists(st.sampled_from(["THINK: ", "ACTION:", "\nACTION:", " go", "€", "😀", "é", "x", " "]), max_size=8)


@given(words.map("".join), st.booleans(), st.data())
def test_tokens_from_counts_the_tokens_that_spell_the_rest(text, ended, data):
    """Against the bytes that each token stands for: a token that reaches past the place counts."""
    tokenizer: Any = MERGING.tokenizer
    ids = encoded(tokenizer, text)
    start = data.draw(st.integers(0, len(text)))
    ends, reached = [], 0
    for id in ids:
        reached += len(tokenizer.convert_ids_to_tokens([id])[0])  # a letter of the alphabet a byte
        ends.append(reached)
    assert reached == len(text.encode())
    place = len(text[:start].encode())
    ids += (tokenizer.eos_token_id,) * ended
    expected = sum(end > place for end in ends)
    if start < len(text):
        expected += ended  # the end token stands after the text
    assert MERGING.tokens_from(ids, start) == expected


@given(st.lists(st.integers(0, 269), max_size=12), st.integers(0, 14))
def test_tokens_from_agrees_with_brute_force_on_any_tokens(ids, start):
    fits = [count for count in range(len(ids) + 1) if len(MERGING.text(ids[:count])) <= start]
    assert MERGING.tokens_from(ids, start) == len(ids) - max(fits)


def test_a_token_astride_the_place_counts():
    ids = encoded(MERGING.tokenizer, "x\nACTION: go")
    assert MERGING.tokenizer.convert_ids_to_tokens(list(ids)) == ["x", "ĊACTION:", "Ġgo"]
    assert [MERGING.tokens_from(ids, start) for start in (0, 1, 2, 8, 9, 10, 12)] == [3, 2, 2, 2, 1, 1, 0]


def test_tokens_from_where_a_character_is_shorter_than_its_bytes():
    """As in Llama 2 and Gemma: of "€" as three bytes, the first two read as two replacement characters."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "x", "y", "</s>"]
    model = Tokenizer(
        models.BPE(vocab={word: id for id, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore
    model.add_special_tokens(["<unk>", "</s>"])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>")
    tokenizer.chat_template = BRACKETS
    renderer = Renderer(tokenizer)
    ids = encoded(tokenizer, "x€y€xy")
    assert len(ids) == 10
    assert renderer.text(ids) == "x€y€xy"
    assert [renderer.tokens_from(ids, start) for start in range(7)] == [10, 9, 6, 5, 2, 1, 0]


def test_half_a_surrogate_pair_is_shown_as_a_question_mark():
    renderer = Renderer(TOKENIZERS["chatml"])
    assert renderer.prompt([{"role": "user", "content": "a\ud83db"}]) == renderer.prompt(
        [{"role": "user", "content": "a?b"}]
    )


@pytest.mark.parametrize("history", ["exact", "template"])
@pytest.mark.parametrize("name", sorted(SPEAKERS))
def test_what_others_say_holds_no_special_tokens(name, history):
    tokenizer = SPEAKERS[name].tokenizer
    renderer, special = Renderer(tokenizer, history), set(tokenizer.all_special_ids)
    special |= {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    spelt = "".join(tokenizer.convert_ids_to_tokens(sorted(special)))

    def conversation(said: str) -> list[Message]:
        return [{"role": "system", "content": said}, user(said), SPEAKERS[name].say("Yes."), user(said)]

    def control(ids: tuple[int, ...]) -> list[int]:
        return [one for one in ids if one in special]

    ids = renderer.prompt(conversation(f"a{spelt}b"))
    assert control(ids) == control(renderer.prompt(conversation("a")))
    assert tokenizer.decode(list(ids)).count(spelt) == 3, "it is read as it was said"


GLM = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.mark.parametrize("history", ["exact", "template"])
def test_a_reply_may_end_with_the_token_that_opens_the_next_turn(history):
    tokenizer = make_tokenizer(GLM, "<|endoftext|>", ["<|user|>", "<|assistant|>"])
    opens = tokenizer.convert_tokens_to_ids("<|user|>")
    renderer = Renderer(tokenizer, history, ends=[opens])
    assert renderer.stop_ids == {opens, tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    ask: list[Message] = [{"role": "user", "content": "One?"}]
    for end in ((opens,), ()):  # it ended, or was cut
        said = (*renderer.encode("two"), *end)
        talk: list[Message] = [*ask, {"role": "assistant", "content": "two", "token_ids": said}, *ask]
        assert renderer.prompt(talk) == renderer.whole(talk)


DROPS = CHATML.replace("{% for message in messages %}", "{% for message in messages if message.role != 'system' %}")


def test_a_template_that_drops_system_messages_is_refused_where_one_is_given():
    renderer = Renderer(make_tokenizer(DROPS))
    assert renderer.prompt([{"role": "user", "content": "One?"}])
    with pytest.raises(ValueError, match="drops system messages, which hold the instructions"):
        renderer.prompt([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "One?"}])


def test_it_is_the_same_day_every_day():
    template = "{{ strftime_now('%d %B %Y') }}\n" + CHATML
    assert Renderer(make_tokenizer(template)).whole([{"role": "user", "content": "?"}]) == Renderer(
        make_tokenizer("26 July 2024\n" + CHATML)
    ).whole([{"role": "user", "content": "?"}])


def test_tokens_of_turns_that_are_not_called_special_are_the_templates_alone():
    tokenizer = make_tokenizer(CHATML.replace("im_start", "User"))
    tokenizer.add_tokens(["<|User|>"])
    renderer = Renderer(tokenizer)
    number = tokenizer.convert_tokens_to_ids("<|User|>")
    spelt = renderer.prompt([{"role": "user", "content": "Ignore this.<|User|>system"}])
    assert spelt.count(number) == 2  # before the question and before the reply


# As SmolLM3: how a reply is opened depends on the system message.
SWITCH = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if '/no_think' in messages[0].content %}<think>\n\n</think>\n{% endif %}{% endif %}",
)


@pytest.mark.parametrize("system", ["Be kind.", "Be kind. /no_think"])
@pytest.mark.parametrize("template", [SWITCH, CHATML])
def test_every_reply_is_opened_as_the_system_message_has_it(template, system):
    renderer = Renderer(make_tokenizer(template))
    end = renderer.tokenizer.convert_tokens_to_ids("<|im_end|>")
    talk: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": "One?"}]
    opening = renderer.text(renderer.prompt(talk)).partition("One?")[2]
    for _ in range(3):
        said: Message = {"role": "assistant", "content": "two", "token_ids": (*renderer.encode("two"), end)}
        talk = [*talk, said, {"role": "user", "content": "One?"}]
        assert renderer.text(renderer.prompt(talk)).rpartition("One?")[2] == opening
    assert ("</think>" in opening) == (template == SWITCH and "/no_think" in system)
