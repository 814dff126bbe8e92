"""What may import what. The text of the modules is read; they are not run, except where a fresh process says so."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnwise

ROOT = Path(turnwise.__file__).parent
FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(ROOT.rglob("*.py"))
    if file != ROOT / "__init__.py"
}

# The path of a turn, read in one direction: a module or folder imports only itself and what stands before it.
ORDER = [
    *("types", "failures", "groups", "seeds", "surrogates"),
    *("figures", "files", "compiled", "cores", "loopback", "remembered", "protocols", "parse", "memory"),
    *("components", "checks", "config", "recipe"),
    *("optional", "calling", "hosted", "traces", "rewards", "data", "toolcalls", "tools", "interactions", "envs"),
    *(
        "chat_template",
        "history",
        "render",
        "tokencheck",
        "agents",
        "tally",
        "share",
        "session",
        "slot",
        "batch_loop",
        "collector",
    ),
    *("sending", "lines", "batch", "lanes", "family"),
    *("threads", "cpu", "gpu", "kernels", "flash", "attention", "fused", "trunk"),
    *("lora", "policy", "loss", "advantages", "update", "rehearsal"),
    *("models", "engines", "checkpoint", "intervals", "metrics", "progress", "run"),
    *("allocator", "terminal", "panel", "view", "trackers"),
    *("players", "episodes", "evaluate", "results", "suite", "compare", "probe", "train", "cli", "__main__"),
]
SHARED = {"batch", "compiled", "groups", "advantages.gae", "advantages.relative", "advantages.spans"}  # by estimators
TORCH_FREE = [name for name in FILES if name.split(".")[0] in ORDER[: ORDER.index("sending")]]


def statements(body: list[ast.stmt], inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that happen when a module runs, and with `inside_functions` also those of its functions."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse, inside_functions)
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, name, []), inside_functions)
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body, inside_functions)


def imports(name: str, inside_functions: bool = False) -> set[str]:
    """The modules that a module imports, with all their dots."""
    found = set()
    for node in statements(ast.parse(FILES[name].read_text()).body, inside_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{name} has a relative import"
            assert node.module
            # `from turnwise import loss` names a module, `from turnwise.loss import whiten` a function.
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part for part in parts if part.removeprefix("turnwise.") in FILES} or {node.module}
    return found


def ours(name: str) -> set[str]:
    """The same of ours alone, those inside functions included."""
    return {one.removeprefix("turnwise.") for one in imports(name, True) if one.startswith("turnwise.")}


def test_the_reader_of_imports_sees_what_it_should():
    assert {"turnwise.types", "collections.abc", "typing"} <= imports("protocols")
    assert "turnwise.batch" not in imports("protocols")  # for the type checker alone
    assert {"torch", "turnwise.loss", "turnwise.batch"} <= imports("update")
    assert "torch.utils.tensorboard" in imports("trackers.tensorboard", inside_functions=True)
    assert "torch.utils.tensorboard" not in imports("trackers.tensorboard")


def siblings(folder: str) -> set[str]:
    return {name for name in FILES if name.split(".")[0] == folder}


def plain_tools() -> list[str]:
    """The one that scores answers knows the scorer."""
    return sorted(siblings("tools") - {"tools.gsm8k"})


@pytest.mark.parametrize("name", TORCH_FREE)
def test_left_of_the_batch_nothing_imports_torch(name):
    assert not {one for one in imports(name) if one.split(".")[0] == "torch"}


def test_records_environments_and_memories_run_without_torch():
    light = ["types", "protocols", "parse", "seeds", "config", "envs.host", "envs.babyai"]
    light += ["memory.window", "memory.full", "memory.note", "toolcalls", "tools", "rewards", "data", "interactions"]
    code = f"import sys, {', '.join(f'turnwise.{name}' for name in light)}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("types", set()),
        ("seeds", set()),
        ("surrogates", set()),
        ("figures", set()),
        ("files", set()),
        ("compiled", set()),
        ("loss", set()),
        ("checkpoint", {"files"}),
        ("parse", {"types"}),
        ("chat_template", {"types"}),
        ("history", {"types", "chat_template", "remembered"}),
        ("render", {"types", "surrogates", "chat_template", "history", "remembered"}),
        ("tokencheck", {"types", "chat_template", "render"}),
        ("protocols", {"types"}),
        ("lines", {"sending"}),
        ("batch", {"lines", "types"}),
        ("lora", {"components", "config", "optional", "seeds"}),
        ("lanes", set()),
        ("family", set()),
        ("threads", set()),
        ("cpu", {"compiled", "threads"}),
        ("gpu", set()),
        ("kernels", {"cpu", "gpu"}),
        ("flash", {"sending"}),
        ("attention", {"flash", "kernels", "lines", "sending"}),
        ("fused", {"attention", "family", "flash", "kernels", "lines"}),
        ("trunk", {"attention", "fused", "kernels", "lines"}),
        ("policy", {"batch", "fused", "kernels", "lanes", "lines", "lora", "sending", "trunk"}),
        ("groups", {"types"}),
        ("advantages.spans", set()),
        ("advantages.relative", {"advantages.spans", "batch", "groups"}),
        *((name, SHARED) for name in FILES if name.startswith("advantages.")),
        *((name, {"types", "protocols", "memory.chat"}) for name in FILES if name.startswith("memory.")),
        *((name, {"components", "surrogates", *siblings("toolcalls")}) for name in sorted(siblings("toolcalls"))),
        *(
            (name, {"components", "recipe", "calling", "failures", "surrogates", "toolcalls", *siblings("tools")})
            for name in plain_tools()
        ),
        ("tools.gsm8k", {"rewards.gsm8k", "tools.base", "tools.records"}),
        ("tools.sandbox", set()),
        *(
            (name, {"types", "protocols", "config", "optional", *siblings("traces")})
            for name in sorted(siblings("traces"))
        ),
        ("optional", set()),
        ("cores", set()),
        ("loopback", set()),
        ("remembered", set()),
        ("calling", set()),
        ("hosted", {"types", "loopback"}),
        *(
            (name, {"types", "config", "calling", "failures", "figures", *siblings("rewards")})
            for name in sorted(siblings("rewards"))
        ),
        *(
            (name, {"types", "seeds", "config", "components", "optional", "rewards.numbers", *siblings("data")})
            for name in sorted(siblings("data"))
        ),
        *(
            (
                name,
                {
                    "types",
                    "seeds",
                    "surrogates",
                    "components",
                    "recipe",
                    "calling",
                    "hosted",
                    "figures",
                    "rewards.gsm8k",
                    *siblings("interactions"),
                },
            )
            for name in sorted(siblings("interactions"))
        ),
    ],
)
def test_a_module_imports_no_more_of_ours_than_it_needs(name, allowed):
    assert ours(name) <= allowed


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[0] in ORDER])
def test_imports_point_one_way(name):
    place = ORDER.index(name.split(".")[0])
    assert {other for other in ours(name) if other.split(".")[0] not in ORDER[: place + 1]} == set()


def test_no_plugin_knows_another_kind_of_plugin():
    kinds = ("memory", "tools", "interactions", "envs", "engines", "advantages", "trackers")
    strangers = {
        (name, other)
        for name in FILES
        for other in ours(name)
        if name.split(".")[0] in kinds and other.split(".")[0] in kinds and name.split(".")[0] != other.split(".")[0]
    }
    assert strangers == set()
