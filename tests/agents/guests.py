"""Programs that play through the endpoint, as anybody may write them; and what plays the same without it."""

import asyncio
import http.client
import json
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
from sums import add

from turnwise.agents.chat import Chat, sample_of
from turnwise.protocols import Session, Setting
from turnwise.tools.function import as_tool
from turnwise.types import Ending

SCHEMA: Any = as_tool(add).tool_schema.openai


def client(base_url: str, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=600)


def tool_loop(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    talk, messages = client(base_url, api_key).chat.completions, list(sample["prompt"])
    while True:
        said = talk.create(model=model, messages=messages, tools=[SCHEMA]).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls or ():
            assert call.type == "function"
            messages.append(_answer(call.id, call.function.arguments))
        if not said.tool_calls:
            return


async def streaming_loop(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    messages = list(sample["prompt"])
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=600) as asks:
        while True:
            async with asks.chat.completions.stream(model=model, messages=messages, tools=[SCHEMA]) as stream:
                said = (await stream.get_final_completion()).choices[0].message
            calls = said.tool_calls or ()
            plain = [{"id": one.id, "type": "function", "function": one.function.model_dump()} for one in calls]
            messages.append({"role": "assistant", "content": said.content, **({"tool_calls": plain} if plain else {})})
            messages += [_answer(call.id, call.function.arguments) for call in calls]
            if not calls:
                return


FLAT: Any = {"type": "function", **SCHEMA["function"]}


def items_loop(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    talk, items = client(base_url, api_key).responses, list(sample["prompt"])
    while items[-1].get("type") != "message":
        response = talk.create(model=model, input=items, tools=[FLAT], store=False)
        items += _replied(response)


async def streaming_items_loop(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    items = list(sample["prompt"])
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=600) as asks:
        while items[-1].get("type") != "message":
            async with asks.responses.stream(model=model, input=items, tools=[FLAT], store=False) as stream:
                items += _replied(await stream.get_final_response())


def _replied(response: Any) -> list[dict[str, Any]]:
    """The items of a response, and the outputs of its calls."""
    plain = [{k: v for k, v in item.to_dict().items() if k != "parsed_arguments"} for item in response.output]
    outputs = [
        {
            "type": "function_call_output",
            "call_id": item["call_id"],
            "output": str(add(**json.loads(item["arguments"]))),
        }
        for item in plain
        if item["type"] == "function_call"
    ]
    return plain + outputs


def _answer(id: str, arguments: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": str(add(**json.loads(arguments)))}


class Doubter:
    """Asks the sample's question, and whether that is so."""

    def __init__(self, setting: Setting):
        self._codec = setting.codec

    async def run(self, session: Session) -> Ending:
        chat = Chat(session, self._codec, sample_of(session).prompt, 4000)
        await chat.reply()
        chat.say("Is that so?")
        await chat.reply()
        return Ending(())


def doubter(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    talk, messages = client(base_url, api_key).chat.completions, list(sample["prompt"])
    said = talk.create(model=model, messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Is that so?"}]
    talk.create(model=model, messages=messages)


def editor(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> float:
    """Puts other words into the mouth of the model."""
    talk, messages = client(base_url, api_key).chat.completions, list(sample["prompt"])
    talk.create(model=model, messages=messages)
    messages += [{"role": "assistant", "content": "I was edited."}, {"role": "user", "content": "Is that so?"}]
    talk.create(model=model, messages=messages)
    return 0.5


def endless(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    """Never mind what it is told."""
    talk, messages = client(base_url, api_key).chat.completions, list(sample["prompt"])
    while True:
        try:
            said = talk.create(model=model, messages=messages).choices[0].message.content
        except openai.NotFoundError:
            return
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded"
            continue
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]


async def voter(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> None:
    """Asks the same twice at once."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=600) as asks:
        one = asks.chat.completions.create
        await asyncio.gather(*(one(model=model, messages=sample["prompt"]) for _ in range(2)))


def mute() -> None:
    """Says nothing."""


async def sleeper() -> None:
    await asyncio.sleep(3600)


async def stubborn() -> None:
    """Does not stop when it is told to."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    await asyncio.sleep(5)
    HEARD.append((0, {}))


def crasher(base_url: str) -> None:
    raise RuntimeError("no money left")


def teller(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> Any:
    """Returns a reward that is none."""
    client(base_url, api_key).chat.completions.create(model=model, messages=sample["prompt"])
    return float("nan")


def boaster(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> Any:
    """Returns a reward that is a number, and not a finite one as floats go."""
    client(base_url, api_key).chat.completions.create(model=model, messages=sample["prompt"])
    return 10**400


def titan(base_url: str, api_key: str, model: str, sample: dict[str, Any]) -> Any:
    """Returns a number of which Python makes no text."""
    client(base_url, api_key).chat.completions.create(model=model, messages=sample["prompt"])
    return 10**5000


async def leaver() -> None:
    """Leaves in a task of its own."""

    async def leave() -> None:
        raise SystemExit(3)

    await asyncio.gather(leave())


REFUSED: list[tuple[str, Any, str]] = [  # by the API of chat completions
    ("n", 2, "unsupported_parameter"),
    ("tool_choice", "required", "unsupported_parameter"),
    ("tool_choice", {"type": "function", "function": {"name": "add"}}, "unsupported_parameter"),
    ("parallel_tool_calls", False, "unsupported_parameter"),
    ("response_format", {"type": "json_object"}, "unsupported_parameter"),
    ("stop", ["\n"], "unsupported_parameter"),
    ("model", "gpt-4o", "model_not_found"),
    ("messages", [], ""),
    ("messages", [{"role": "robot", "content": ""}], ""),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], ""),
    ("tools", [{"type": "function"}], ""),
]
REFUSED_ITEMS: list[tuple[str, Any, str]] = [  # by the API of responses
    ("tool_choice", "required", "unsupported_parameter"),
    ("parallel_tool_calls", False, "unsupported_parameter"),
    ("previous_response_id", "resp_0", "unsupported_parameter"),
    ("conversation", "mine", "unsupported_parameter"),
    ("background", True, "unsupported_parameter"),
    ("prompt", {"id": "mine"}, "unsupported_parameter"),
    ("text", {"format": {"type": "json_object"}}, "unsupported_parameter"),
    ("truncation", "auto", "unsupported_parameter"),
    ("include", ["message.output_text.logprobs"], "unsupported_parameter"),
    ("model", "gpt-4o", "model_not_found"),
    ("input", [], ""),
    ("input", 7, ""),
    ("input", ["Hello"], ""),
    ("input", [{"role": "robot", "content": ""}], ""),
    ("input", [{"type": "item_reference", "id": "msg_0"}], ""),
    ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], ""),
    ("input", [{"type": "function_call", "call_id": "1", "name": "add", "arguments": "["}], ""),
    ("tools", [{"type": "web_search"}], ""),
]
HEARD: list[tuple[int, dict[str, Any]]] = []


def clumsy(base_url: str, session: str, model: str, sample: dict[str, Any]) -> None:
    """Asks for all that cannot be had, and then for what can."""
    good, flat = {"model": model, "messages": sample["prompt"]}, {"model": model, "input": sample["prompt"]}
    HEARD.clear()
    for path, asked, refused in (("chat/completions", good, REFUSED), ("responses", flat, REFUSED_ITEMS)):
        wrong = [json.dumps({**asked, key: value}).encode() for key, value, _ in refused]
        HEARD.extend(post(f"{base_url}/{path}", body) for body in wrong)
    HEARD.extend(post(f"{base_url}/chat/completions", body) for body in (b"{no", b"[]"))
    HEARD.append(post(base_url.replace("/t/", "/t/x") + "/chat/completions", json.dumps(good).encode()))
    for path, body in (("reward", {"value": 1}), ("end", {"end": "terminated"}), ("end", {"end": "soon"})):
        HEARD.append(post(f"{session}/{path}", json.dumps(body).encode()))
    assert post(f"{base_url}/chat/completions", json.dumps(good).encode())[0] == 200


def hearer(base_url: str, model: str, sample: dict[str, Any]) -> None:
    """Asks once, with a tool whose parameters the sample may tell, and keeps what it hears."""
    parameters = sample["extra"].get("parameters", {})
    tool = {"type": "function", "function": {**SCHEMA["function"], "parameters": parameters}}
    body = {"model": model, "messages": sample["prompt"], "tools": [tool]}
    status, said = post(f"{base_url}/chat/completions", json.dumps(body).encode())
    HEARD.append((status, said["choices"][0]["message"]))


def halver(base_url: str, model: str, sample: dict[str, Any]) -> None:
    """Sends half a surrogate pair, where a response repeats it."""
    body = {"model": model, "input": sample["prompt"], "instructions": "Be \ud83d."}
    HEARD.append(post(f"{base_url}/responses", json.dumps(body).encode()))


def digger(base_url: str, model: str, sample: dict[str, Any]) -> None:
    """Claims a call whose arguments are deep; and then asks as it should."""
    function = {"name": "add", "arguments": sample["extra"]["arguments"]}
    claim = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    body = {"model": model, "messages": [*sample["prompt"], claim]}
    HEARD.append(post(f"{base_url}/chat/completions", json.dumps(body).encode()))
    post(f"{base_url}/chat/completions", json.dumps({**body, "messages": sample["prompt"]}).encode())


def nagger(base_url: str, model: str, sample: dict[str, Any]) -> None:
    """Asks again and again what is refused."""
    deep = '{"a": ' * 800 + "1" + "}" * 800
    claim = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": deep}}],
    }
    body = json.dumps({"model": model, "messages": [*sample["prompt"], claim]}).encode()
    while "refuses the conversation" in str(post(f"{base_url}/chat/completions", body)):
        pass


def quitter(base_url: str, session: str, model: str, sample: dict[str, Any]) -> None:
    """Ends its episode by itself, and does not return."""
    post(f"{base_url}/chat/completions", json.dumps({"model": model, "messages": sample["prompt"]}).encode())
    post(f"{session}/end", b'{"end": "terminated"}')
    threading.Event().wait(600)


def payer(base_url: str, session: str, model: str, sample: dict[str, Any]) -> None:
    """Rewards its turns, and ends its episode by itself."""
    body = json.dumps({"model": model, "messages": sample["prompt"]}).encode()
    for _ in range(3):
        post(f"{base_url}/chat/completions", body)
    wrong = ({"value": 9, "turn": 3}, {"value": "much"}, {"value": 10**400})
    for told in ({"value": 1.5, "turn": 1}, {"value": 0.5}, *wrong):
        HEARD.append(post(f"{session}/reward", json.dumps(told).encode()))
    post(f"{session}/end", b'{"end": "truncated"}')
    threading.Event().wait(600)


def post(address: str, body: bytes) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=600) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


ASKED, LEFT, GO_ON = threading.Event(), threading.Event(), threading.Event()


def impatient(base_url: str, model: str, sample: dict[str, Any]) -> None:
    """Leaves before the answer, and asks again."""
    place = urlsplit(base_url)
    assert place.hostname
    body = json.dumps({"model": model, "messages": sample["prompt"]})
    headers = sample["extra"]["headers"]
    first, second = (http.client.HTTPConnection(place.hostname, place.port, timeout=600) for _ in range(2))
    first.request("POST", f"{place.path}/chat/completions", body, {k: v for k, v in headers.items() if k[0] != "x"})
    ASKED.wait(600)
    first.close()
    LEFT.wait(600)
    second.request("POST", f"{place.path}/chat/completions", body, headers)
    GO_ON.set()
    assert second.getresponse().status == 200
