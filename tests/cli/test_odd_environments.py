"""Bad input and odd environments of every kind: never exit 70, and one true paragraph on stderr."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusewright.cli.main import app
from tests.support.folders import ROOT

HEAD = "import os, sys, threading, torch\nimport torch.nn as nn\n\n"
MODEL = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) + 1\n"
INIT = "    def __init__(self):\n"
INPUTS = "def get_inputs():\n    return [torch.randn(4, 6)]\n"

# File -> its bytes; what a person may give instead of a problem file.
FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 64,
    "null": b"x = 1\0",
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 64,
    "syntax": b"class Model(:\n",
    "indent": b"class Model:\nx = 1\n  y = 2\n",
    "latin": "x = 'é'".encode("latin-1"),
    "utf-16": "x = 1".encode("utf-16"),
    "deep": b"x = " + b"(" * 9000,
    "long": b"x = [" + b"1, " * 200_000 + b"]",
    "no torch": b"import no_such_package_anywhere\n",
    "exits": b"import sys; sys.exit(0)\n",
    "raises base": b"raise BaseException('x')\n",
    "recursion": b"def f(): return f()\nf()\n",
    "prints": b"print('x' * 1000)\n",
    "model is none": HEAD.encode() + b"Model = None\nget_inputs = None\n",
    "model is an object": HEAD.encode() + b"Model = nn.ReLU()\nget_inputs = list\n",
}

# What a model or its inputs may be -> its text, in place of MODEL and INPUTS.
MODELS: dict[str, str] = {
    "constructor raises": MODEL + INIT + "        raise OSError(28, 'full')\n" + INPUTS,
    "constructor exits": MODEL + INIT + "        sys.exit(70)\n" + INPUTS,
    "constructor forgets super": MODEL + INIT + "        self.x = nn.ReLU()\n" + INPUTS,
    "constructor asks for more": MODEL + INIT.replace("self", "self, w") + "        0\n" + INPUTS,
    "forward raises": MODEL.replace("torch.relu(x) + 1", "1 / 0") + INPUTS,
    "forward raises a group": MODEL.replace(
        "return torch.relu(x) + 1", "raise ExceptionGroup('a', [ValueError('b')])"
    ) + INPUTS,
    "forward exits": MODEL.replace("torch.relu(x) + 1", "sys.exit(3)") + INPUTS,
    "forward is async": MODEL.replace("def forward", "async def forward") + INPUTS,
    "forward yields": MODEL.replace("return torch.relu(x) + 1", "yield x") + INPUTS,
    "forward is missing": "class Model(nn.Module):\n    pass\n" + INPUTS,
    "forward takes more": MODEL.replace("(self, x)", "(self, x, y)") + INPUTS,
    "inputs raise": MODEL + "def get_inputs():\n    raise KeyError\n",
    "inputs need arguments": MODEL + "def get_inputs(n):\n    return [n]\n",
    "inputs are a tensor": MODEL + "def get_inputs():\n    return torch.randn(4, 6)\n",
    "inputs are a generator": MODEL + "def get_inputs():\n    yield torch.randn(4, 6)\n",
    "inputs name nothing": MODEL + "def get_inputs():\n    return {'y': torch.randn(4, 6)}\n",
    "inputs hold themselves": MODEL + "a = []\na.append(a)\ndef get_inputs():\n    return [a]\n",
    "init inputs are none": MODEL + INPUTS + "def get_init_inputs():\n    return None\n",
    "no inputs": MODEL.replace("(self, x)", "(self)").replace("relu(x)", "ones(3)")
    + "def get_inputs():\n    return []\n",
    **{
        f"returns {value}": MODEL.replace("torch.relu(x) + 1", value) + INPUTS
        for value in (
            "None", "3", "()", "[]", "{}", "'text'", "object()", "lambda: x", "torch", "x.tolist()",
            "x.sum().item()", "(x + 1, object())", "{x}", "iter([x])", "x.numpy()", "x.shape",
            "x.to_sparse()", "x.to_mkldnn()", "x.to('meta')", "x.is_leaf", "self", "self.forward",
            "nn.Parameter(x)", "torch.nested.nested_tensor([x[0], x[1]])", "x[x > 0]", "x[:0]",
            "x.sum()", "x.requires_grad_()", "x.bernoulli()",
            "torch.quantize_per_tensor(x, 1., 0, torch.qint8)",
            "x.clone(), x, x", "x.data_ptr()", "super().forward(x)", "globals()",
        )
    },
    **{
        f"input {value}": MODEL + f"def get_inputs():\n    return [{value}]\n"
        for value in (
            "None", "3", "'text'", "True", "object()", "torch.ones(())",
            "torch.ones(0, 3)", "torch.ones(0)", "torch.ones(2, 0)", "torch.ones(1, 1)",
            "torch.empty(3, device='meta')",
            "torch.eye(3).to_sparse()", "torch.eye(3).to_sparse_csr()",
            "torch.quantize_per_tensor(torch.eye(3), 1.0, 0, torch.qint8)",
            "torch.eye(3).requires_grad_()", "torch.eye(4)[::2, ::2]", "torch.eye(4).t()",
            "torch.ones(1).expand(3, 3)", "torch.eye(3, dtype=torch.complex64)",
            "torch.eye(3, dtype=torch.complex64).conj()",

            "torch.ones(3).half()", "torch.ones(3).bfloat16()", "torch.ones(3).double()",
            "torch.ones(3).bool()", "torch.ones(3).to(torch.int8)", "torch.eye(3).to_mkldnn()",
            "nn.Parameter(torch.eye(3))", "torch.nested.nested_tensor([torch.ones(2)])",
            "torch.randn(2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)",
            "torch.ones(4)[1:]", "torch.as_strided(torch.ones(9), (3, 3), (1, 1))",
            "torch.Generator()",
            "__import__('numpy').ones(3)", "nn.ReLU()", "torch.float32", "torch.device('cpu')",
            "{1, 2}", "b'bytes'", "1 + 2j", "float('nan')", "10 ** 30", "range(3)",
        )
    },
}  # fmt: skip

# Words after `fusewright`; {ok} is a good problem, {folder} an empty folder.
ARGUMENTS: tuple[str, ...] = (
    "",
    "explain",
    "nothing",
    "explain {folder}",
    "explain {folder}/absent.py",
    "explain /dev/null",
    "explain {ok}/more",
    "explain {ok} {ok}",
    "explain {ok} --target tpu",
    "explain {ok} --target cuda",
    "explain {ok} --set",
    "explain {ok} --set x",
    "explain {ok} --set x=",
    "explain {ok} --set y=3",
    "explain {ok} --unknown",
    "explain " + "a" * 5000,
    "optimize {ok} -o {folder}",
    "optimize {ok} -o {ok}",
    "optimize {ok} -o {folder}/no/such/folder.py",
    "optimize {ok} -o /proc/self/x.py",
    "optimize {ok} -o /dev/full",
    "optimize {ok} -o {folder}/a.py --report {folder}",
    "optimize {ok} -o {folder}/a.py --report {ok}",
    "optimize {ok} -o {folder}/a.py --report /nowhere/r.json",
    "optimize {ok} -o {folder}/a.py --rules none-such",
    "optimize {ok} -o {folder}/a.py --precision half",
    "judge",
    "judge {ok}",
    "judge {ok} {folder}",
    "judge {ok} {folder}/absent.py",
    "judge --replay {ok}",
    "judge --replay {ok} --case 1",
    "bench {ok} {folder}/absent.py",
    "bench {ok} {ok} --against nobody",
    "suite {ok}",
    "suite {folder}/absent",
    "suite {folder} --jobs 0",
)


def checked(code: int | None, said: str) -> None:
    assert code in (0, 1, 2, 3), f"exit code {code}: {said}"
    assert "Traceback" not in said
    assert "bug in fusewright" not in said
    own = [line for line in said.splitlines() if line.startswith(("fusewright:", "Error:"))]
    assert len(own) == (code in (2, 3)) or "Usage:" in said, said


def run(words: str, folder: Path) -> None:
    good = folder / "good.py"
    good.write_text(HEAD + "x = 1\n" + MODEL + INPUTS)
    given = [w.format(ok=good, folder=folder / "empty") for w in words.split()]
    (folder / "empty").mkdir(exist_ok=True)
    done = CliRunner().invoke(app, given)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    checked(done.exit_code, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_bytes(FILES[name])
    run(f"explain {path}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(HEAD + MODELS[name])
    run(f"explain {path} --target cpu", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("words", ARGUMENTS)
def test_arguments(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(words, tmp_path)


def _limit(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, value))


def _closed(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for n in numbers:
            os.close(n)

    return close


# Environment variables, what happens right before the command, and where its output goes.
VARIABLES = {
    "HOME": "/nowhere", "PATH": "/nowhere", "LC_ALL": "C", "PYTHONIOENCODING": "ascii",
    "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error", "TORCH_LOGS": "+dynamo,+export",
}  # fmt: skip
ENVIRONMENTS: dict[str, tuple[dict[str, str], Callable[[], None] | None, str]] = {
    "full output": ({}, None, "/dev/full"),
    "nothing open": ({}, _closed(0, 1), ""),
    "odd variables": (VARIABLES, None, ""),
    "nowhere to write": (
        {"HOME": "/proc", "TMPDIR": "/proc"},
        _limit(resource.RLIMIT_FSIZE, 0),
        "",
    ),
    "few files": ({}, _limit(resource.RLIMIT_NOFILE, 24), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name: str, tmp_path: Path) -> None:
    """The good problem explained in an odd place: done, or a reason that is the place's."""
    variables, before, output = ENVIRONMENTS[name]
    path = tmp_path / "good.py"
    path.write_text(HEAD + MODEL + INPUTS)
    with open(output or os.devnull, "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "fusewright", "explain", str(path), "--target", "cpu"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, cwd=tmp_path, stdout=out,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, preexec_fn=before, check=False,
            timeout=120,
        )  # fmt: skip
    checked(done.returncode, done.stderr.decode())
