"""The installer: PyTorch's CPU index is used where it answers, and waited for briefly."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType

import pytest

from tests.support.folders import ROOT
from tests.support.scripts import load_script


@pytest.fixture(scope="module")
def install() -> ModuleType:
    return load_script("tools/install.py")


class Ok(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def test_an_index_that_answers(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Ok)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        assert install.answers(f"http://127.0.0.1:{server.server_port}/", 3.0)
    finally:
        server.shutdown()
        server.server_close()


def test_an_index_that_says_nothing(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        assert not install.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/", 0.2)
        assert time.monotonic() - start_s < 2.0


def test_an_index_that_is_not_there(install: ModuleType) -> None:
    assert not install.answers("no such scheme://", 3.0)


@pytest.mark.parametrize(
    ("gpu", "reachable", "options"),
    [
        (True, True, []),
        (False, False, []),
        (False, True, ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]),
    ],
)
def test_which_build(
    install: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    reachable: bool,
    options: list[str],
) -> None:
    monkeypatch.setattr(install, "has_cuda_gpu", lambda: gpu)
    monkeypatch.setattr(install, "answers", lambda url, seconds: reachable)
    assert install.index_options() == options


def test_another_pytorch_beside_the_pinned_one(install: ModuleType) -> None:
    lock = "# Every package.\nnumpy==2.4.1\ntorch==2.13.0\ntorchtools==1.0\n"
    other = install.with_torch(lock, "2.15.0")
    assert other == "# Every package.\nnumpy==2.4.1\ntorch==2.15.0\ntorchtools==1.0\n"
    assert install.with_torch(lock, "") == lock
    assert install.with_torch(install.LOCK.read_text(), "9.9.9").count("torch==9.9.9\n") == 1


@pytest.mark.parametrize(("words", "venv"), [((), ".venv"), (("TORCH=9.9.9",), ".venv-9.9.9")])
def test_each_pytorch_has_an_environment_of_its_own(words: tuple[str, ...], venv: str) -> None:
    command = ["make", "--dry-run", "--always-make", "unit", *words]
    # what a make around this test was told goes no further
    apart = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    apart.pop("TORCH", None)
    done = subprocess.run(command, cwd=ROOT, env=apart, capture_output=True, text=True, check=True)
    assert f"tools/install.py {venv} " in done.stdout
    assert f"\n{venv}/bin/python -m pytest" in done.stdout
