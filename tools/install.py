"""requirements-dev.txt -> an environment for development, with this PyTorch. Run by the Makefile:

    python3 tools/install.py [FOLDER [VERSION]]

into .venv, with the pinned PyTorch, if not told otherwise; everything else is as pinned.

Runs under the system's Python, with nothing but the standard library. PyTorch's CPU build has its
own package index; it is used when there is no CUDA GPU and the index answers, and never required.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-dev.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 3.0
OLDEST = (3, 11)


def has_cuda_gpu() -> bool:
    """True if `nvidia-smi` is here and lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def answers(url: str, seconds: float) -> bool:
    """True if `url` can be read within `seconds`, name look-up included."""
    answered = threading.Event()

    def probe() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds):
                answered.set()
        except (OSError, urllib.error.URLError, ValueError):
            return

    threading.Thread(target=probe, daemon=True).start()
    return answered.wait(seconds)


def index_options() -> list[str]:
    if has_cuda_gpu():
        print("CUDA GPU found: installing PyTorch's default (CUDA) build.")
        return []
    if answers(f"{CPU_INDEX}/torch/", PROBE_SECONDS):
        print("No CUDA GPU: installing PyTorch's CPU build.")
        return ["--extra-index-url", CPU_INDEX]
    print(f"No CUDA GPU; {CPU_INDEX} does not answer: PyTorch comes from the configured index.")
    return []


def with_torch(lock: str, version: str) -> str:
    """The text of a lock with another PyTorch; as it is, where no version is named."""
    lines = [f"torch=={version}" if version and line.startswith("torch==") else line
             for line in lock.splitlines()]  # fmt: skip
    return "\n".join(lines) + "\n"


def pip(venv: Path, *arguments: str) -> None:
    command = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def main(folder: str = ".venv", version: str = "") -> int:
    if sys.version_info < OLDEST:
        print(
            f"Python {sys.version.split()[0]} is too old: fusewright needs 3.11 or newer. "
            "Name one: make SYSTEM_PYTHON=/path/to/python3.12 ...",
            file=sys.stderr,
        )
        return 2
    venv = ROOT / folder
    try:
        if not (venv / "bin" / "python").exists():
            print(f"Making {folder} ...", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        print(f"Installing requirements-dev.txt into {folder} ...", flush=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
            lock.write(with_torch(LOCK.read_text(encoding="utf-8"), version))
            lock.flush()
            pip(venv, "install", "-qq", *index_options(), "--requirement", lock.name)
        own = ("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        pip(venv, "install", "-qq", *own)
    except subprocess.CalledProcessError as error:
        print(f"Installing failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
