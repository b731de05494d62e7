"""What is asked of a machine, in order: a table of questions, each with a time limit.

A question asks what the rest of the product asks, with its functions, and gives observations.
Whatever it raises is one, too, and so is no answer in its time.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from fusewright.build import compilers
from fusewright.common.devices import DriverState, driver_states, host_free
from fusewright.doctor import trial_kernels
from fusewright.doctor.asking import Unanswered, run
from fusewright.doctor.observation import (
    CPU,
    CROSS,
    EVERYTHING,
    GPU,
    JUDGE,
    SANITIZE,
    TIMING,
    Observation,
    State,
)
from fusewright.doctor.torch_facts import NOT_INSTALLED, SeenGpu, TorchFacts
from fusewright.judge.isolation import worker_pool
from fusewright.report.amounts import counted
from fusewright.targets.compile_flags import CAPABILITY, march
from fusewright.targets.target import TARGETS

# As pyproject.toml has them; and the oldest PyTorch that an emitted file runs with.
PYTHON, TORCH, TORCH_OF_FILES = (3, 11), (2, 11), (2, 0)
CUDA = (12, 1)  # the oldest toolkit
ASK_S = 20.0  # what a program takes at most to say its version
# What the system calls itself -> how a C++ compiler is installed there.
COMPILER_OF = {
    "debian": "sudo apt install g++",
    "fedora": "sudo dnf install gcc-c++",
    "rhel": "sudo dnf install gcc-c++",
    "suse": "sudo zypper install gcc-c++",
    "arch": "sudo pacman -S gcc",
    "alpine": "sudo apk add g++",
    "darwin": "xcode-select --install",
}
# Instructions that PyTorch's own products use, and kernels of ours do not.
LIBRARY_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "avx512_fp16")
# A setting of Linux, the value with which it forbids namespaces, and what allows them.
FORBIDS = (
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
)
IN_CONTAINER = "in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined"
STEADY = "performance"  # the governor under which a processor's clock does not follow the load
BUSY = 0.5  # of the cores: more load than that is heard in timings


@dataclass(frozen=True)
class Known:
    """What is found out first, as questions are about it. facts: of PyTorch; None where it gives
    none.  why: that is, else "".  drivers: what the driver says of the GPUs."""

    facts: TorchFacts | None
    why: str = ""
    drivers: tuple[DriverState, ...] = ()

    @property
    def gpus(self) -> tuple[SeenGpu, ...]:
        return self.facts.gpus if self.facts else ()

    @property
    def gpu_ability(self) -> str:
        names = dict.fromkeys(gpu.target.name for gpu in self.gpus if gpu.target)
        return f"kernels for {' and '.join(names)}" if names else GPU

    def torch(self) -> TorchFacts:
        """Raises Unanswered without PyTorch."""
        if self.facts is None:
            raise Unanswered("PyTorch would know, and gives no answer")
        return self.facts


@dataclass(frozen=True)
class Question:
    """what: is asked, and the name of the observation if there is no answer.  allows: of that
    one, so all that its observations may allow.  limit_s: the most that an answer may take."""

    what: str
    allows: tuple[str, ...]
    ask: Callable[[Known], Iterator[Observation]]
    limit_s: float = 60.0


def driver_answer() -> tuple[DriverState, ...]:
    """() where no driver answers."""
    try:
        return driver_states()
    except (OSError, subprocess.SubprocessError):
        return ()


# ---- Python and PyTorch --------------------------------------------------------------------------


def numbers(version: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" -> (2, 13)."""
    digits = ("".join(takewhile(str.isdigit, part)) for part in version.split(".")[:2])
    return tuple(int(part or 0) for part in digits)


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _python(_: Known) -> Iterator[Observation]:
    new_enough = sys.version_info[:2] >= PYTHON
    yield Observation(
        "Python",
        "ok" if new_enough else "no",
        f"{platform.python_version()} (needs {dotted(PYTHON)} or newer)",
        EVERYTHING,
        "" if new_enough else f"install Python {dotted(PYTHON)} or newer",
    )


def _pytorch(known: Known) -> Iterator[Observation]:
    install = f'pip install "torch>={dotted(TORCH)}"'
    if known.facts is None:
        found = known.why if known.why == NOT_INSTALLED else f"no answer: {known.why}"
        yield Observation("PyTorch", "no", found, EVERYTHING, install)
        return
    version, cuda = known.facts.version, known.facts.cuda
    new_enough, runs_files = numbers(version) >= TORCH, numbers(version) >= TORCH_OF_FILES
    said = f"{version}, for {f'CUDA {cuda}' if cuda else 'CPUs only'} "
    said += f"(needs {dotted(TORCH)} or newer; emitted files {dotted(TORCH_OF_FILES)})"
    if runs_files and not new_enough:
        said += "; emitted files run with it"
    state: State = "ok" if new_enough else "no"
    yield Observation("PyTorch", state, said, EVERYTHING, "" if new_enough else install)


# ---- the CPU and its compiler --------------------------------------------------------------------


def _compiler(known: Known) -> Iterator[Observation]:
    words = compilers.cxx()
    path, command = shutil.which(words[0]), " ".join(words)
    if path is None:
        missing = f"{command or 'CXX is empty: that'} is not on the PATH"
        yield Observation("C++ compiler", "no", missing, (CPU, GPU), _install_compiler())
        return
    try:
        version = run([*words, "--version"], ASK_S).text.split("\n")[0].strip()
    except Unanswered as error:
        version = str(error)
    processor = march(known.facts.config) if known.facts else "native"
    try:
        trial = trial_kernels.try_cpp(words, processor)
    except Unanswered as error:
        yield from _without_openmp(words, processor, f"{path} ({version})", str(error))
        return
    said = f"{path} ({version}): compiles a kernel in {trial.seconds:.2f} s, which runs"
    yield Observation("C++ compiler", "ok", said, (CPU, GPU))
    said = f"the kernel ran in {counted(trial.threads, 'thread')}"
    yield Observation("OpenMP", "ok", said, (CPU,))


def _without_openmp(
    words: tuple[str, ...], processor: str, which: str, why: str
) -> Iterator[Observation]:
    """The compiler failed; is it OpenMP that it lacks?"""
    try:
        trial_kernels.try_cpp(words, processor, openmp=False)
    except Unanswered:
        said = f"{which}: no kernel of one line: {why}"
        yield Observation("C++ compiler", "no", said, (CPU, GPU), _install_compiler())
        return
    said = f"{which}: compiles a kernel, which runs"
    yield Observation("C++ compiler", "ok", said, (CPU, GPU))
    yield Observation("OpenMP", "no", f"not with this compiler: {why}", (CPU,), _install_compiler())


def _install_compiler() -> str:
    """The command for this system; in words where it is not known."""
    names = [platform.system().lower()]
    try:
        about = platform.freedesktop_os_release()
        names += [about.get("ID", ""), *about.get("ID_LIKE", "").split()]
    except OSError:
        pass
    known = (COMPILER_OF[name] for name in names if name in COMPILER_OF)
    return next(known, "install g++, or set CXX to the compiler to use")


def _ninja(_: Known) -> Iterator[Observation]:
    path = compilers.ninja()
    if path is None:
        missing = "neither beside this Python nor on the PATH"
        yield Observation("ninja", "no", missing, (CPU, GPU), "pip install ninja")
        return
    version = run([path, "--version"], ASK_S).text.strip()
    yield Observation("ninja", "ok", f"{path} ({version})", (CPU, GPU))


def _processor(known: Known) -> Iterator[Observation]:
    cores = len(os.sched_getaffinity(0))
    said = f"{counted(cores, 'core')} of {os.cpu_count() or cores}"
    if known.facts:
        config = known.facts.config
        word = config.partition(CAPABILITY)[2].split("\n")[0].strip() or "no vectors that it names"
        said += f", {counted(known.facts.threads, 'thread')} of PyTorch's; {word}: kernels are "
        said += f"compiled for {march(config)}"
    more = [name for name in LIBRARY_INSTRUCTIONS if name in _flags()]
    said += f"; {', '.join(more)} for PyTorch's own products" if more else ""
    yield Observation("processor", "ok", said, (CPU, TIMING))


def _flags() -> list[str]:
    """Instructions of the processor by Linux' names; [] where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split() for line in lines if line.startswith("flags")), [])


def _clocks_of_cpu(_: Known) -> Iterator[Observation]:
    places = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    governors = sorted({place.read_text(encoding="ascii").strip() for place in places})
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    steady = governors == [STEADY]
    said = "the system does not tell what governs them"
    if governors:
        said = f"governed by {', '.join(governors)}" + ": they follow the load" * (not steady)
    advice = f"sudo cpupower frequency-set -g {STEADY}" if governors and not steady else ""
    yield Observation("clocks of the CPU", "ok" if steady else "note", said, (TIMING,), advice)
    busy = load > BUSY * cores
    said = f"load {load:.1f} on {counted(cores, 'core')}"
    said += ": others are at work, which timings hear" if busy else ""
    yield Observation("other work", "note" if busy else "ok", said, (TIMING,))


# ---- the GPU and its compiler --------------------------------------------------------------------


def _nvcc(known: Known) -> Iterator[Observation]:
    home = known.facts.cuda_home if known.facts else ""
    own, found = Path(home, "bin", "nvcc"), compilers.nvcc()
    path = str(own) if home and own.is_file() else found
    cuda = known.facts.cuda if known.facts else ""
    install = f"install the CUDA toolkit {cuda or f'{dotted(CUDA)} or newer'}"
    install += " (https://developer.nvidia.com/cuda-downloads)"
    if path is None:
        yield Observation("nvcc", "no", "not on the PATH", (GPU, CROSS), install)
        return
    version = run([path, "--version"], ASK_S).text.partition("release ")[2].split(",")[0].strip()
    said = f"{path} ({version})"
    if numbers(version) < CUDA:
        said += f": {dotted(CUDA)} or newer is needed"
        yield Observation("nvcc", "no", said, (GPU, CROSS), install)
        return
    if cuda and numbers(version)[0] != numbers(cuda)[0]:
        said += f": PyTorch is built with CUDA {cuda}, and takes no extensions of another"
        yield Observation("nvcc", "no", said, (GPU,), install)
        return
    gpu = next((gpu.target for gpu in known.gpus if gpu.target), None)
    target = gpu or [t for t in TARGETS.values() if t.language == "cuda"][-1]
    try:
        trial = trial_kernels.try_cuda(path, target.arch, runs=gpu is not None)
    except Unanswered as error:
        said += f": no kernel of one line for {target.name}: {error}"
        yield Observation("nvcc", "no", said, (GPU, CROSS), install)
        return
    said += f": compiles a kernel for {target.name} in {trial.seconds:.1f} s"
    said += ", which runs" if gpu else ", not run"
    if found is None:
        said += "; it is not on the PATH, where fusewright looks"
        yield Observation(
            "nvcc", "no", said, (GPU, CROSS), f'export PATH="$PATH:{Path(path).parent}"'
        )
        return
    yield Observation("nvcc", "ok", said, (GPU, CROSS))


def _gpus(known: Known) -> Iterator[Observation]:
    drivers = known.drivers
    for gpu in known.gpus:
        version = next((d.driver for d in drivers if d.name == gpu.name), "")
        said = f"{gpu.name}, compute capability {dotted(gpu.capability)}, "
        said += f"{gpu.memory_bytes / 2**30:.0f} GiB" + (f", driver {version}" if version else "")
        if gpu.target:
            yield Observation("GPU", "ok", f"{said}: runs files for {gpu.target.name}", (GPU,))
        else:
            yield Observation("GPU", "no", f"{said}: no kernels are written for it", (GPU,))
    if known.gpus:
        return
    names = ", ".join(f"{d.name} (driver {d.driver})" for d in drivers)
    if names and known.facts and not known.facts.cuda:
        said = f"{names}, which this PyTorch, built for CPUs only, cannot use"
        advice = f'pip install --force-reinstall "torch>={dotted(TORCH)}"'
        yield Observation("GPU", "no", said, (GPU,), advice)
    elif names:
        why = known.facts.trouble if known.facts else known.why
        said = f"{names}, which PyTorch does not find" + (f": {why}" if why else "")
        yield Observation("GPU", "no", said, (GPU,))
    else:
        yield Observation("GPU", "no", "none that PyTorch or a driver finds", (GPU,))


def _clocks_of_gpu(known: Known) -> Iterator[Observation]:
    for gpu in known.drivers:
        if not (gpu.clock.isdigit() and gpu.most.isdigit()):
            said = f"{gpu.name}: the driver does not tell"
            yield Observation("clocks of the GPU", "note", said, (TIMING,))
            continue
        said = f"{gpu.name}: {gpu.clock} MHz now, {gpu.most} at most; whether they are locked the "
        said += "driver does not tell"
        advice = f"sudo nvidia-smi --lock-gpu-clocks={gpu.most}, where timings are to repeat"
        yield Observation("clocks of the GPU", "note", said, (TIMING,), advice)


# ---- where files go ------------------------------------------------------------------------------


def _build_folder(known: Known) -> Iterator[Observation]:
    folder = Path(known.torch().build_folder)
    place = next(p for p in (folder, *folder.parents) if p.exists())
    advice = 'export TORCH_EXTENSIONS_DIR="$HOME/torch_extensions", or any folder to write to'
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        said = f"{folder}: {place} cannot be written to: {error.strerror}"
        yield Observation("build folder", "no", said, (CPU, GPU), advice)
        return
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        said = f"{folder}: nothing in {place} may be run (noexec)"
        yield Observation("build folder", "no", said, (CPU, GPU), advice)
        return
    yield Observation("build folder", "ok", f"{folder} can be written to", (CPU, GPU))
    yield _room("disk for builds", place, (CPU, GPU), "TORCH_EXTENSIONS_DIR")


def _temporary_folder(_: Known) -> Iterator[Observation]:
    yield _room("disk for judging", Path(tempfile.gettempdir()), (JUDGE,), "TMPDIR")


def _room(what: str, place: Path, allows: tuple[str, ...], variable: str) -> Observation:
    free = shutil.disk_usage(place).free
    enough = free >= worker_pool.ROOM_BYTES
    advice = "" if enough else f"make room, or name a folder with more in {variable}"
    said = f"{free / 2**30:.1f} GiB are free in {place}"
    return Observation(what, "ok" if enough else "no", said, allows, advice)


# ---- the judge -----------------------------------------------------------------------------------


def _memory(_: Known) -> Iterator[Observation]:
    said = f"{host_free() / 2**30:.1f} GiB are free of {worker_pool.memory_bytes() / 2**30:.1f}"
    yield Observation("memory", "ok", said, (JUDGE,))


def _sandbox(known: Known) -> Iterator[Observation]:
    device = "cuda" if known.gpus else "cpu"
    with worker_pool.open_site(device, ()) as site:
        plan, notes = site.plan, list(site.notes)
        sanitizer = shutil.which("compute-sanitizer", path=site.tool_path())
        missing = site.missing_tools()
    said = f"tier {plan.tier} of 2, as the judge's own test inside it shows"
    said += f"; {'; '.join(notes)}" if notes else ""
    state: State = "ok" if plan.tier == 2 else "note" if plan.tier else "no"
    advice = "" if plan.tier == 2 else _namespaces_advice()
    yield Observation("sandbox", state, said, (JUDGE,), advice)
    own_user = plan.uid is not None or plan.user_namespace
    for name, on, lost in (
        ("namespaces", plan.namespaces, "a candidate sees other processes and the network's names"),
        ("another user", own_user, "a candidate may do what you may"),
        ("seccomp", plan.seccomp, "no system call is refused to a candidate"),
        ("Landlock", plan.landlock, "files are guarded by the rest alone"),
    ):
        state = "ok" if on else "note"
        yield Observation(f"- {name}", state, "in use" if on else f"not here: {lost}")
    said = f"not where it looks: {', '.join(missing)}" if missing else "all to build kernels with"
    yield Observation("judge's tools", "no" if missing else "ok", said, (JUDGE,))
    yield _sanitizer(known, sanitizer)


def _namespaces_advice() -> str:
    for name, value, advice in FORBIDS:
        place = Path("/proc/sys", name)
        if place.is_file() and place.read_text(encoding="ascii").strip() == value:
            return advice
    return IN_CONTAINER


def _sanitizer(known: Known, path: str | None) -> Observation:
    if path:
        state: State = "ok" if known.gpus else "no"
        said = path if known.gpus else f"{path}, but no GPU"
        return Observation("compute-sanitizer", state, said, (SANITIZE,))
    package = f"cuda-sanitizer-{known.torch().cuda.replace('.', '-')}" if known.gpus else ""
    advice = f"install {package} of NVIDIA's repository" if package else ""
    return Observation("compute-sanitizer", "no", "not where the judge looks", (SANITIZE,), advice)


COMPILES_S = 2 * (trial_kernels.COMPILE_S + trial_kernels.RUN_S) + ASK_S
QUESTIONS = (
    Question("Python", EVERYTHING, _python),
    Question("PyTorch", EVERYTHING, _pytorch),
    Question("C++ compiler", (CPU, GPU), _compiler, COMPILES_S),
    Question("ninja", (CPU, GPU), _ninja),
    Question("processor", (CPU, TIMING), _processor),
    Question("build folder", (CPU, GPU), _build_folder),
    Question("nvcc", (GPU, CROSS), _nvcc, COMPILES_S),
    Question("GPU", (GPU,), _gpus),
    Question("memory", (JUDGE,), _memory),
    Question("disk for judging", (JUDGE,), _temporary_folder),
    Question("sandbox", (JUDGE, SANITIZE), _sandbox, 300.0),
    Question("clocks of the CPU", (TIMING,), _clocks_of_cpu),
    Question("clocks of the GPU", (TIMING,), _clocks_of_gpu),
)
