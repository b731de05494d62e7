"""pyproject.toml -> requirements-dev.txt: every package of the development environment, pinned.

Run by `make lock`. PyTorch's version is the one argument; its CPU and CUDA builds share it, and
each of them pins its own CUDA packages, so those are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Every package of the development environment. Written by `make lock`; do not edit.
"""


def resolve(torch_version: str) -> list[tuple[str, str]]:
    """Name and version of all packages pip would install, sorted by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", f"torch=={torch_version}", f"{ROOT}[dev]"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    found = [(p["metadata"]["name"].lower(), p["metadata"]["version"]) for p in report["install"]]
    return sorted((name, version.split("+")[0]) for name, version in found if name != "fusewright")


def is_cuda_part_of_torch(name: str) -> bool:
    dev_only = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12")
    return name == "triton" or (name.startswith(("nvidia-", "cuda-")) and name not in dev_only)


def main() -> None:
    lines = [f"{n}=={v}\n" for n, v in resolve(sys.argv[1]) if not is_cuda_part_of_torch(n)]
    (ROOT / "requirements-dev.txt").write_text(HEADER + "".join(lines))
    print(f"requirements-dev.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
