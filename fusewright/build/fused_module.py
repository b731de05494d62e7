"""Emitted text -> running code, or the compiler's complaint as one paragraph.

An emitted file compiles itself when it first runs. Here is what happens without that: a
cross-compilation of CUDA text for a GPU that is not here, and the module of a fused class that
shares its tensors with the module it was made from. And, for the tuner, many texts compiled at once
in processes of their own, which can be stopped.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import linecache
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusewright.build.compilers import cpp_extension, nvcc
from fusewright.emit.runtime import LIBRARY_FUNCTION
from fusewright.emit.scope import EmitScope
from fusewright.errors import BuildFailed, CaptureFailed
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import Target

COMPILE_SECONDS = 300
POLL_S, LEAVE_S = 0.02, 2.0
NO_TIME = "there was no time to compile it"
COMPLAINT = 300  # characters of a compiler's last words
_numbers = itertools.count()


def cross_compile(source: str, target: Target) -> str:
    """Compile CUDA text for a GPU that is not here; return in a sentence what could be done.

    Raises BuildFailed when nvcc refuses the text.
    """
    unseen = f"there is no {target.name} GPU here to verify it on"
    if nvcc() is None:
        return f"generated for {target.name} but not compiled, since nvcc is not here, and {unseen}"
    with tempfile.TemporaryDirectory(prefix="fusewright-") as folder:
        text = Path(folder) / "kernels.cu"
        text.write_text(source, encoding="utf-8")
        command = ["nvcc", *cuda_flags(target.arch), "-Xptxas", "-v", "-c", str(text)]
        done = subprocess.run(
            [*command, "-o", str(Path(folder) / "kernels.o")],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
    if done.returncode:
        first = " ".join(done.stderr.strip().splitlines()[:6])
        raise BuildFailed(f"nvcc refused the generated kernels for {target.name}: {first}")
    return f"compiled for {target.name}, but {unseen}"


def build_all(
    texts: Sequence[str], deadline: float, told: Callable[[int, int], None] = lambda *_: None
) -> tuple[str, ...]:
    """Compile runtime blocks of emitted files, a process for each core; why not, "" if compiled.

    deadline: of time.monotonic; what is not compiled by then is stopped.  told: how many are done,
    of how many.  A block that was compiled once is found again, by whoever runs it.
    """
    said = [NO_TIME] * len(texts)
    waiting, running = list(enumerate(texts)), dict[int, subprocess.Popen[bytes]]()
    with tempfile.TemporaryDirectory(prefix="fusewright-") as folder:
        try:
            while (waiting or running) and time.monotonic() < deadline:
                while waiting and len(running) < len(os.sched_getaffinity(0)):
                    k, text = waiting.pop(0)
                    running[k] = _start(text, Path(folder) / f"kernels_{k}")
                for k in [k for k, process in running.items() if process.poll() is not None]:
                    code, log = running.pop(k).returncode, Path(folder) / f"kernels_{k}.log"
                    words = log.read_text(encoding="utf-8", errors="replace").split()
                    said[k] = " ".join(words)[-COMPLAINT:] if code else ""
                    told(len(texts) - len(waiting) - len(running), len(texts))
                time.sleep(POLL_S)
        finally:
            for process in running.values():
                _stop(process)
    return tuple(said)


def _start(text: str, stem: Path) -> subprocess.Popen[bytes]:
    """A process that compiles one block, with ninja and the compilers in a group of its own."""
    path = stem.with_suffix(".py")
    path.write_text(f"import torch\n\n{text}\n{LIBRARY_FUNCTION}()\n", encoding="utf-8")
    with stem.with_suffix(".log").open("wb") as log:
        command = [sys.executable, str(path)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


class Compiling:
    """A runtime block of an emitted file that is compiled beside something else.

    It ends where a process that runs the file looks first, `cache_folder`.
    """

    def __init__(self, text: str) -> None:
        self._library: Path | None = None
        self._thread = threading.Thread(target=self._compile, args=[text], daemon=True)
        if text:
            cpp_extension()  # the text imports it, too, which is then heard no more
            self._thread.start()

    def library(self) -> Path | None:
        """The compiled kernels, once they are; None where there are none, or they don't compile,
        which whoever runs the file will hear of."""
        if self._thread.ident is not None:
            self._thread.join(COMPILE_SECONDS)
        return self._library

    def _compile(self, text: str) -> None:
        values: dict[str, Any] = {"torch": torch}
        # Whatever it is: the file itself will meet it again, and say so.
        with suppress(Exception):
            exec(compile(text, "<runtime block>", "exec"), values)
            self._library = values[LIBRARY_FUNCTION]()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a group to leave, so that it takes its folder along; then make sure."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=LEAVE_S)


def scope_of(module: nn.Module) -> EmitScope:
    """The names by which the text for `fused_module` reaches the module's classes and globals."""
    kinds = dict.fromkeys(type(child) for child in module.modules())
    own = [kind for kind in kinds if not kind.__module__.startswith("torch.")]
    classes = {kind: f"_FUSEWRIGHT_CLASSES[{k}]" for k, kind in enumerate(own)}
    function = inspect.unwrap(type(module).forward)
    reach = "_FUSEWRIGHT_VALUES[{0!r}]"
    return EmitScope(classes, function.__globals__, reach=reach, traced=False)


def fused_module(module: nn.Module, text: str) -> nn.Module:
    """A twin of `module` whose class has the `forward` of the emitted text; its own without one.

    Raises CaptureFailed for a module with a forward of its own, beside its class's.
    """
    kind = type(module)
    if "forward" in module.__dict__:
        raise CaptureFailed(
            f"This {kind.__name__} has a forward that was set on the object. "
            "Define it in the class."
        )
    if not text:
        return twin_of(module, {}, {})
    kinds = dict.fromkeys(type(child) for child in module.modules())
    scope: dict[str, Any] = {
        "_FUSEWRIGHT_CLASSES": [k for k in kinds if not k.__module__.startswith("torch.")],
        "_FUSEWRIGHT_VALUES": inspect.unwrap(kind.forward).__globals__,
    }
    filename = f"<fusewright {next(_numbers)}: {kind.__name__}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)
    members = {
        **_methods(scope["ModelNew"]),
        "reference_forward": kind.forward,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    fused = type(f"Fused{kind.__name__}", (kind,), members)
    scope["ModelNew"] = fused
    return twin_of(module, {id(module): fused}, {})


def _methods(written: type) -> dict[str, object]:
    """What the class of an emitted text defines."""
    return {name: value for name, value in vars(written).items() if not name.startswith("__")}


def twin_of(
    module: nn.Module, new: Mapping[int, type[nn.Module]], known: dict[int, nn.Module]
) -> nn.Module:
    """The same module in another object: tensors, attributes, hooks are shared; registries are not.

    So neither adding a hook nor `eval` on one of them reaches the other. new: the class of the
    twin, by the id of a module whose twin has another one.
    """
    kind = new.get(id(module), type(module))
    twin = known[id(module)] = object.__new__(kind)
    registries = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict)}
    for name, value in vars(module).items():
        twin.__dict__[name] = copy.copy(value) if name in registries else value
    for name, child in module._modules.items():
        if child is not None:
            twin._modules[name] = known.get(id(child)) or twin_of(child, new, known)
    return twin
