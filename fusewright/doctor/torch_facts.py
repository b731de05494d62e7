"""PyTorch, in a process of its own -> what it says of itself and of this machine's GPUs.

A PyTorch that cannot be imported, crashes or hangs takes nobody along. What is asked is what the
other packages ask: `targets/detect.py`, `targets/compile_flags.py`, `build/compilers.py`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fusewright.common.package import PACKAGE
from fusewright.doctor.asking import Unanswered, run
from fusewright.targets.target import Target, target_for_gpu

PATIENCE_S = 90.0  # a first import from a cold disk takes half a minute
# The package comes from where this one does, wherever the interpreter would look.
_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from fusewright.doctor.torch_facts import main
main()
"""
NOT_INSTALLED = "it is not installed for this Python"


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as PyTorch sees it. shared_bytes: what one block may ask for."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int
    memory_bytes: int

    @property
    def target(self) -> Target | None:
        """Whose kernels run on it."""
        return target_for_gpu(self.capability, self.shared_bytes)


@dataclass(frozen=True)
class TorchFacts:
    """version: of PyTorch.  cuda: that it is built with, "" for none.  cuda_home: the toolkit with
    which it builds extensions, or "".  config: what it was built with and uses here, in words.
    threads: of its operators on the CPU.  build_folder: where emitted files keep their kernels.
    gpus: of this machine.  trouble: why it could not ask for these, or "".
    """

    version: str
    cuda: str
    cuda_home: str
    config: str
    threads: int
    build_folder: str
    gpus: tuple[SeenGpu, ...] = ()
    trouble: str = ""


def ask_torch() -> TorchFacts:
    """Raises Unanswered with the reason where PyTorch gives no answer."""
    if importlib.util.find_spec("torch") is None:
        raise Unanswered(NOT_INSTALLED)
    told = run([sys.executable, "-c", _CHILD, str(PACKAGE.parent)], PATIENCE_S).text
    try:
        return _facts(json.loads(told.splitlines()[-1]))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise Unanswered(f"its answer cannot be read: {told[-80:]!r}") from error


def _facts(told: Mapping[str, Any]) -> TorchFacts:
    gpus = (gpu | {"capability": tuple(gpu["capability"])} for gpu in told["gpus"])
    return TorchFacts(**{**told, "gpus": tuple(SeenGpu(**gpu) for gpu in gpus)})


def main() -> None:
    """In the process of its own: the facts as one line of JSON."""
    import torch

    from fusewright.build.compilers import cache_folder, cpp_extension

    gpus, trouble = list[SeenGpu](), ""
    try:
        gpus = _seen()
    except Exception as error:  # noqa: BLE001 -- a driver may complain in any way
        trouble = f"{type(error).__name__}: {error}"
    facts = TorchFacts(
        version=torch.__version__,
        cuda=torch.version.cuda or "",
        cuda_home=cpp_extension().CUDA_HOME or "",
        config=torch.__config__.show(),
        threads=torch.get_num_threads(),
        build_folder=str(cache_folder()),
        gpus=tuple(gpus),
        trouble=trouble,
    )
    sys.stdout.write("\n" + json.dumps(asdict(facts)) + "\n")


def _seen() -> list[SeenGpu]:
    import torch

    from fusewright.targets.detect import gpu_numbered

    found = list[SeenGpu]()
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        g, memory = gpu_numbered(number), torch.cuda.get_device_properties(number).total_memory
        found.append(SeenGpu(g.name, g.capability, g.shared_bytes, memory))
    return found
