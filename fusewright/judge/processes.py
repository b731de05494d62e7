"""What the judge wants run -> workers: started by exec, under deadlines, surely dead after.

A `Site` is one judging's private folder, environment and isolation plan. A `Worker` is one
process behind its warden; `end` always returns within its time, whatever the worker does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fusewright.errors import NotVerifiable, ToolMissing
from fusewright.judge import sandbox
from fusewright.judge.protocol import Channel, Gone, Late, ProtocolViolation, Region

# Bare packages: a worker imports single files of the judge, not what `fusewright` exports.
_BOOT = """
import sys, types
package, warden_line, *paths = sys.argv[1:]
sys.path.extend(p for p in paths if p not in sys.path)
for name, folder in (("fusewright", package), ("fusewright.judge", package + "/judge")):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [folder]
from fusewright.judge import warden
warden.main([warden_line])
"""
_INHERITED = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CC", "CXX")
_MARK = "FUSEWRIGHT_RUN"
KILL_S = 15.0
PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class End:
    """How a worker ended."""

    exit: str  # "exit 0", "SIGSEGV", "killed by the judge: ...", "unknown"
    clean: bool  # exit status 0, without a kill
    reason: str  # why the warden killed it, if it did
    leftovers: tuple[str, ...]
    tail: str
    peak_bytes: int
    dead: bool  # False: it could not be killed


class Worker:
    def __init__(self, name: str, process: subprocess.Popen[bytes], line: Channel, channel: Channel,
                 mark: str) -> None:  # fmt: skip
        self.name = name
        self.channel = channel
        self.nonce = secrets.token_bytes(16)
        self._process = process
        self._line = line
        self._mark = mark
        self._end: End | None = None

    def finish(self, within_s: float = 10.0) -> End:
        """The program has been told that it may leave: wait for it, then for its warden."""
        if self._end is None:
            self._end = self._collect(time.monotonic() + within_s)
        return self._end if self._end is not None else self.kill("it did not leave")

    def kill(self, why: str) -> End:
        if self._end is None:
            with contextlib.suppress(Gone, Late):  # the sweep below does without the warden
                self._line.send_json({"stop": why}, time.monotonic() + 1)
            self._end = self._collect(time.monotonic() + KILL_S)
        if self._end is None:
            self._end = self._sweep(why)
        return self._end

    def _collect(self, deadline: float) -> End | None:
        try:
            told = self._line.receive_json(deadline)
        except Late:
            return None
        except (Gone, ProtocolViolation, ValueError):
            return self._sweep("its warden was killed")
        self._close()
        if "failed" in told:
            return End("not started", False, str(told["failed"]), (), "", 0, True)
        leftovers = told["leftovers"]
        assert isinstance(leftovers, list)
        status, reason = told["status"], str(told["reason"])
        name = f"killed: {reason}" if reason else _exit_name(status)
        peak = int(str(told["peak_bytes"]))
        clean = status == 0 and not reason
        return End(name, clean, reason, tuple(leftovers), str(told["tail"]), peak, True)

    def _close(self) -> None:
        self.channel.close()
        self._line.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _sweep(self, why: str) -> End:
        """Last rung: kill the warden and everything that carries this run's mark."""
        deadline = time.monotonic() + 10
        alive = True
        while alive and time.monotonic() < deadline:
            alive = _kill_marked(self._mark) > 0
            self._process.poll()
            time.sleep(0.05)
        self.channel.close()
        self._line.close()
        return End(f"killed: {why}", False, why, (), "", 0, not alive)


def _exit_name(status: object) -> str:
    if not isinstance(status, int):
        return "unknown"
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def _kill_marked(mark: str) -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found


@dataclass(frozen=True)
class Site:
    folder: Path
    plan: sandbox.Plan
    device: str
    build: Path  # compiled extensions, shared by the workers of one candidate
    notes: tuple[str, ...] = ()

    def start(
        self,
        name: str,
        program: str,
        *,
        options: Mapping[str, object] | None = None,
        regions: tuple[tuple[Region, Region], ...] = (),
        trusted: bool = False,
        environment: Mapping[str, str] | None = None,
        plan: sandbox.Plan | None = None,
        launcher: Sequence[str] = (),
        memory: int = 0,
    ) -> Worker:
        """Start `program` (a module with `main(config)`) behind a warden of its own."""
        mark = secrets.token_hex(16)
        folder = self.folder / f"{name}-{mark[:6]}"
        _make_private(folder, None if trusted else self.plan.uid)
        plan = plan or (sandbox.Plan(0, cuda=self.plan.cuda) if trusted else self.plan)
        line, warden_line = socket.socketpair()
        channel, worker_channel = socket.socketpair()
        descriptors = [worker_channel.detach()]
        for inputs, outputs in regions:
            # The judge's worker writes inputs and reads outputs; a candidate's the other way.
            if trusted:
                descriptors += [os.dup(inputs.fd), outputs.read_only()]
            else:
                descriptors += [inputs.read_only(), os.dup(outputs.fd)]
        command = [sys.executable, "-I", "-B", "-c", _BOOT, str(PACKAGE), str(warden_line.fileno())]
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*launcher, *command, *_library_folders()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(warden_line.fileno(), *descriptors),
                env=self.environment(folder) | dict(environment or {}) | {_MARK: mark},
                cwd="/",
                start_new_session=True,
            )
        warden_line.close()
        for descriptor in descriptors:
            os.close(descriptor)
        worker = Worker(name, process, Channel(line), Channel(channel), mark)
        config = {
            "plan": asdict(plan), "folder": str(folder), "program": program,
            "descriptors": descriptors, "environment": {}, "nonce": worker.nonce.hex(),
            "memory_bytes": memory or memory_bytes() * (10 if trusted else 6) // 10,
            "processes": 4096, "options": dict(options or {}),
        }  # fmt: skip
        worker._line.send_json(config, time.monotonic() + 10)
        return worker

    def tool_path(self) -> str:
        home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        own = Path(sys.executable).parent
        return os.pathsep.join(map(str, (own, home / "bin", "/usr/local/bin", "/usr/bin", "/bin")))

    def environment(self, folder: Path) -> dict[str, str]:
        """Built from scratch: nothing of the caller's that could steer Python or CUDA."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        own = {
            "PATH": self.tool_path(), "HOME": str(folder), "LANG": "C.UTF-8",
            "TMPDIR": str(folder), "TORCH_EXTENSIONS_DIR": str(self.build),
            "TRITON_CACHE_DIR": str(self.build / "triton"), "USER": "judged",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "LOGNAME": "judged",
            "CUDA_CACHE_PATH": str(folder / "cuda"), "MAX_JOBS": str(os.cpu_count() or 1),
            "CUDA_VISIBLE_DEVICES": visible if self.device == "cuda" else "",
        }  # fmt: skip
        return own | {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _library_folders() -> list[str]:
    """Where torch lives, in case the isolated interpreter does not look there by itself."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolMissing("PyTorch is not installed for this Python; the judge needs it.")
    return [str(Path(spec.origin).parent.parent)]


def _make_private(folder: Path, uid: int | None) -> None:
    folder.mkdir(mode=0o700)
    if uid is not None:
        os.chown(folder, uid, uid)


def memory_bytes() -> int:
    """What this machine, or the control group around us, has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


@contextmanager
def open_site(device: str, *, readable: tuple[str, ...] = ()) -> Iterator[Site]:
    """A private folder with the strongest isolation that proves itself on this machine."""
    # An odd user id of our own, so that no other process of the machine shares it.
    uid = 61_000 + secrets.randbelow(4_000)
    folder = Path(tempfile.mkdtemp(prefix="fusewright-judge-"))
    folder.chmod(0o711)
    build = folder / "build"
    libraries = {sys.prefix, sys.base_prefix, str(PACKAGE), *_library_folders(), *readable}
    plans = sandbox.candidates_for(
        root=os.geteuid() == 0,
        uid=uid,
        readable=sorted(libraries),
        writable=[str(build)],
        cuda=device == "cuda",
    )
    (folder / "secret").write_text("not for candidates")
    (folder / "secret").chmod(0o600)
    build.mkdir(mode=0o777)
    notes: list[str] = []
    try:
        for plan in plans:
            site = Site(folder, plan, device, build)
            if plan.uid is not None:
                os.chown(build, plan.uid, plan.uid)
            broken = _self_test(site)
            if not broken:
                yield replace(site, notes=tuple(notes))
                return
            notes.append(f"{plan.says()} does not work here: {broken}")
        raise NotVerifiable("No process can be started for a candidate here: " + "; ".join(notes))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _self_test(site: Site) -> str:
    """What does not hold inside a worker of this plan; empty if all of it does."""
    torch_file = Path(_library_folders()[0]) / "torch" / "__init__.py"
    options = {
        "secret": str(site.folder / "secret"),
        "judge": os.getpid(),
        "must_read": [os.__file__, str(torch_file), str(PACKAGE / "judge" / "candidate.py")],
    }
    worker = site.start("probe", "fusewright.judge.sandbox", options=options)
    try:
        found = worker.channel.receive_json(time.monotonic() + 20)
    except (Gone, Late, ProtocolViolation, ValueError) as error:
        end = worker.kill("the self-test of the sandbox did not answer")
        return f"{error}; {end.reason or end.exit} {end.tail[-200:]}".strip()
    end = worker.finish()
    broken = [name for name, holds in found.items() if not holds]
    return ", ".join(broken) if broken or end.clean else end.exit
