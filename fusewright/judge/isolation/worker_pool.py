"""A device -> a `Site`: a private folder, an isolation plan that proved itself, warm processes.

Candidates' workers are forked by a nursery of the site. The judge's own worker is started by exec,
or, where many sites share, by a nursery of its own; it shares no address, no hash seed and no heap
with a candidate. Workers under a launcher are started by exec. Everything starts at once, so that
it gets ready while the caller does something else.
"""

from __future__ import annotations

import mmap
import os
import resource
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fusewright.errors import NotVerifiable
from fusewright.judge.isolation import library_paths, sandbox
from fusewright.judge.isolation.fork_server import MARK, MARK_LENGTH
from fusewright.judge.isolation.library_paths import PACKAGE, library_folder
from fusewright.judge.isolation.processes import CANDIDATE, ORACLE, Nursery, Worker, command, spawn
from fusewright.judge.isolation.protocol import (
    REGION_BYTES,
    Channel,
    Gone,
    Late,
    ProtocolViolation,
    Region,
)
from fusewright.judge.isolation.shared_slot import Slot

ROOM = "Free some space, or name a folder with more in TMPDIR."
ROOM_BYTES = 64 << 20
LEAST_BYTES = 64 << 20  # of a region: a limit on file sizes below that leaves nothing to judge
LIMITS = resource.RLIMIT_FSIZE, resource.RLIMIT_AS
SLOTS = 12  # the self-test, the phases, the sides of a timing, the sanitizer
_INHERITED = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CC", "CXX")
# What a process reads when it starts, for every worker of a candidate that is not timed. Waiting
# threads sleep: where cores are scarce, spinning makes small operators 20 times slower. glibc fills
# what it hands out and takes back; `Session` gives each worker a byte of its own.
CHECKED = {"OMP_WAIT_POLICY": "passive", "MALLOC_PERTURB_": "1"}
# The trusted worker keeps the memory that it has: zeroing fresh pages takes as long as arithmetic.
# It does not ask for large pages: in a virtual machine that gives memory back they cost 3 s a GB.
_TRUSTED = {
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 46),
}


@dataclass(frozen=True)
class Site:
    folder: Path
    plan: sandbox.Plan
    device: str
    build: Path  # compiled extensions, shared by the workers of one candidate
    notes: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()  # the trusted worker has all of them
    # By the names of the variables that a worker gets: some are read when a library is loaded. And
    # by generation: what is forked by one has one layout of addresses and one heap to begin with.
    nurseries: dict[tuple[frozenset[str], int], Nursery] = field(default_factory=dict)
    _trusted: list[Worker] = field(default_factory=list)

    def start(  # noqa: PLR0913 -- what one worker may differ in from the others
        self,
        name: str,
        program: str,
        *,
        options: Mapping[str, object] | None = None,
        regions: tuple[tuple[Region, Region], ...] = (),
        trusted: bool = False,
        environment: Mapping[str, str] = CHECKED,
        plan: sandbox.Plan | None = None,
        launcher: Sequence[str] = (),
        memory: int = 0,
        generation: int = 0,
    ) -> Worker:
        """Start `program` (a module with `main(config)`) behind a warden of its own."""
        mark = secrets.token_hex(MARK_LENGTH // 2)
        folder = self.folder / mark[:12]  # which phase this is, is none of the worker's business
        _make_private(folder, None if trusted else self.plan.uid)
        plan = plan or (sandbox.Plan(0, cuda=self.plan.cuda) if trusted else self.plan)
        line, warden_line = socket.socketpair()
        channel, worker_channel = socket.socketpair()
        worker = Worker(name, Channel(line), Channel(channel), mark, folder)
        descriptors = [warden_line.detach(), worker_channel.detach()]
        for pair in regions:
            descriptors += _ends(pair, trusted=trusted)
        full = self.environment(folder) | dict(environment) | {MARK: mark}
        try:
            if launcher or (trusted and frozenset(environment) not in SHARED):
                arguments = [
                    *launcher,
                    *command("fusewright.judge.isolation.supervisor", descriptors),
                ]
                log = self.folder / f"{name}.log"
                worker.process = spawn(arguments, full, log, descriptors)
                worker.pid = worker.process.pid
            else:
                worker.pid = self.nursery(environment, generation).fork(full, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        limit = memory or memory_bytes() * (10 if trusted else 6) // 10
        config = {
            "plan": asdict(plan), "folder": str(folder), "program": program,
            "nonce": worker.nonce.hex(), "processes": 4096, "options": dict(options or {}),
            "memory_bytes": limit,
        }  # fmt: skip
        worker.line.send_json(config, time.monotonic() + 10)
        return worker

    @property
    def reference(self) -> Worker:
        """The trusted worker; it is started when it is first asked for."""
        if not self._trusted:
            regions = tuple((slot.inputs, slot.taken) for slot in self.slots)
            own: dict[str, Any] = {"regions": regions, "trusted": True, "environment": _TRUSTED}
            self._trusted.append(self.start("reference", ORACLE, **own))
        return self._trusted[0]

    def renew(self) -> None:
        """The trusted worker is of no use any more; the next one to be asked for is another."""
        for worker in self._trusted:
            worker.kill("it has lost its device")
        self._trusted.clear()

    def nursery(self, environment: Mapping[str, str], generation: int = 0) -> Nursery:
        """The one for workers with these variables; it is started when it is first needed."""
        names = frozenset(environment)
        kind = names, generation
        if kind not in self.nurseries:
            folder = self.folder / f"nursery-{secrets.token_hex(4)}"
            _make_private(folder, None)
            own = {MARK: secrets.token_hex(MARK_LENGTH // 2)}
            full = self.environment(folder) | dict(environment) | own
            shared = None if generation else SHARED.get(names)
            self.nurseries[kind] = Nursery(full, folder.with_suffix(".log"), shared)
        return self.nurseries[kind]

    def retire(self) -> None:
        """End the nurseries of all generations but the first, and what they have forked."""
        for kind in [kind for kind in self.nurseries if kind[1]]:
            self.nurseries.pop(kind).close()

    def compiled(self, uid: int | None = None) -> Path:
        """Where torch.compile keeps what it has made, which no candidate sees. uid: whose it is."""
        folder = self.folder / "compiled"
        if not folder.exists():
            _make_private(folder, uid)
        return folder

    def apart(self, number: int) -> Site:
        """The same for one candidate of several: a user id and a folder for what it builds that no
        other has. number: from 1 on."""
        plan, build = self.plan, self.build.with_name(f"{self.build.name}-{number}")
        uid = None if plan.uid is None else plan.uid + number
        _make_private(build, uid)
        return replace(self, build=build, plan=replace(plan, uid=uid, writable=(str(build),)))

    def close(self) -> None:
        for worker in self._trusted:
            worker.stop("the judging is over")
        for nursery in self.nurseries.values():
            nursery.close()
        for slot in self.slots:
            slot.close()
        for worker in self._trusted:  # giving back its memory has taken a while
            worker.kill("the judging is over")

    def lost(self) -> bool:
        """Has a nursery died? Then something below it may have got away."""
        return not all(nursery.alive() for nursery in self.nurseries.values())

    def adopt(self, library: Path) -> None:
        """Kernels that the caller has compiled, where workers look for what one has compiled."""
        folder = self.build / library.parent.name
        with _writing():
            folder.mkdir(exist_ok=True)
            shutil.copyfile(library, folder / library.name)
            if self.plan.uid is not None:
                for path in (folder, folder / library.name):
                    os.chown(path, self.plan.uid, self.plan.uid)

    def tool_path(self) -> str:
        home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        own = Path(sys.executable).parent
        folders = (own, home / "bin", "/usr/local/bin", "/usr/bin", "/bin")
        return os.pathsep.join(dict.fromkeys(map(str, (*folders, *library_paths.tool_folders()))))

    def missing_tools(self) -> list[str]:
        """What it takes to build an extension, and is not here."""
        needed = ("g++", "ninja", *(("nvcc",) if self.device == "cuda" else ()))
        return [tool for tool in needed if shutil.which(tool, path=self.tool_path()) is None]

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


# By the names of their variables: the nurseries that fork those of sites.
SHARED: dict[frozenset[str], Nursery] = {}


def share(kinds: Sequence[Mapping[str, str]]) -> None:
    """Have sites of this process, and of those it forks, get their nurseries from common ones.

    Those import PyTorch when the first site asks. They end when nobody is left to ask.
    """
    library_paths.readable()  # it is asked once, and not by each process that is forked
    nowhere = Path("/")
    common = Site(nowhere, sandbox.Plan(0), "cuda", nowhere).environment(nowhere)
    for environment in (_TRUSTED, *kinds):
        program = ORACLE if environment is _TRUSTED else CANDIDATE
        full = common | dict(environment) | {MARK: secrets.token_hex(MARK_LENGTH // 2)}
        nursery = Nursery(full, Path(os.devnull), program=program)
        SHARED[frozenset(environment)] = nursery


def _ends(pair: tuple[Region, Region], *, trusted: bool) -> list[int]:
    """The judge's worker writes inputs and reads outputs; a candidate's the other way."""
    inputs, outputs = pair
    if trusted:
        return [os.dup(inputs.fd), outputs.read_only()]
    return [inputs.read_only(), os.dup(outputs.fd)]


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
def open_site(device: str, kinds: Sequence[Mapping[str, str]] = (CHECKED,)) -> Iterator[Site]:
    """A private folder with the strongest isolation that proves itself on this machine.

    kinds: the environments of the workers that will be wanted; their nurseries get warm meanwhile.
    """
    # An odd user id of our own, so that no other process of the machine shares it.
    uid = 61_000 + secrets.randbelow(4_000)
    folder = _new_folder()
    build = folder / "build"
    plans = sandbox.candidates_for(
        root=os.geteuid() == 0,
        uid=uid,
        readable=library_paths.readable(),
        writable=[str(build)],
        cuda=device == "cuda",
    )
    notes: list[str] = []
    if (size := region_bytes()) < REGION_BYTES:
        notes.append(f"{size >> 20} MB of memory between processes: ulimit -f or -v allows no more")
    site = Site(folder, plans[0], device, build)
    try:
        site = replace(site, slots=_new_slots())
        for plan in plans:
            site = replace(site, plan=plan)
            if plan.uid is not None:
                os.chown(build, plan.uid, plan.uid)
            broken = _self_test(site)
            if not broken:
                _warm_up(site, kinds)
                yield replace(site, notes=tuple(notes))
                return
            notes.append(f"{plan.says()} does not work here: {broken}")
        raise NotVerifiable("No process can be started for a candidate here: " + "; ".join(notes))
    finally:
        site.close()
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> Path:
    """With a file that no candidate may read, and room for what the judge and builds write."""
    with _writing():
        folder = Path(tempfile.mkdtemp(prefix="fusewright-judge-"))
    try:
        with _writing():
            folder.chmod(0o711)
            (folder / "secret").write_text("not for candidates")
            (folder / "secret").chmod(0o600)
            (folder / "build").mkdir(mode=0o777)
            free = shutil.disk_usage(folder).free
        if free < ROOM_BYTES:
            raise NotVerifiable(f"Only {free >> 20} MB are free in {folder.parent}. {ROOM}")
    except NotVerifiable:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotVerifiable(f"The judge cannot write its files ({error}). {ROOM}") from error


def region_bytes() -> int:
    """Of one region: what is wanted, or what the limits on file sizes and on addresses leave if
    that will do. A worker has two regions of each slot among its addresses, and PyTorch."""
    files, addresses = (resource.getrlimit(kind)[0] for kind in LIMITS)
    limits = [files] if files != resource.RLIM_INFINITY else []
    limits += [addresses // (3 * SLOTS)] if addresses != resource.RLIM_INFINITY else []
    limit = min(limits, default=REGION_BYTES)
    if not LEAST_BYTES <= limit < REGION_BYTES:
        return REGION_BYTES
    return limit // mmap.PAGESIZE * mmap.PAGESIZE


def _new_slots() -> tuple[Slot, ...]:
    kinds, size = ("in", "out", "taken"), region_bytes()
    try:
        return tuple(Slot(*(Region(f"{kind}-{i}", size) for kind in kinds)) for i in range(SLOTS))
    except OSError as error:
        raise NotVerifiable(
            f"No shared memory for the judge's processes ({error}). Raise the limits on file "
            "size, addresses and open files (ulimit -f, -v, -n)."
        ) from error


def _warm_up(site: Site, kinds: Sequence[Mapping[str, str]]) -> None:
    """Start what takes its time; nobody waits for it here."""
    assert site.reference.pid
    for environment in kinds:
        site.nursery(environment).load()


def _self_test(site: Site) -> str:
    """What does not hold inside a worker of this plan; empty if all of it does."""
    torch_file = Path(library_folder()) / "torch" / "__init__.py"
    options = {
        "secret": str(site.folder / "secret"),
        "judge": os.getpid(),
        "must_read": [
            os.__file__,
            str(torch_file),
            str(PACKAGE / "judge" / "isolation" / "candidate_worker.py"),
        ],
    }
    worker = site.start("probe", "fusewright.judge.isolation.sandbox", options=options)
    try:
        found = worker.channel.receive_json(time.monotonic() + 60)
    except (Gone, Late, ProtocolViolation, ValueError) as error:
        end = worker.kill("the self-test of the sandbox did not answer")
        return f"{error}; {end.reason or end.exit} {end.tail[-200:]}".strip()
    end = worker.finish()
    broken = [name for name, holds in found.items() if not holds]
    return ", ".join(broken) if broken or end.clean else end.exit
