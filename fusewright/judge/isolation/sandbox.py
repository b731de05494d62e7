"""Isolation plan -> a process that can no longer reach the judge.

Three tiers, tried from the top and believed only after a self-test inside (`probe`):
  2  own user or uid, pid, mount, network and ipc namespaces; a root directory that holds nothing
     but the interpreter, the system's libraries and one private folder; seccomp
  1  no new privileges, seccomp; another uid (when started as root) and Landlock where they work
  0  a process of its own with limits and a clean environment
Everything here is a system call through ctypes; no torch, nothing to install.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusewright.judge.isolation.protocol import Channel

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_READ_ONLY_NO_SUID = 1 | 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
_SAME_ON_ALL = {"pidfd_getfd": 438, "mount_setattr": 442, "io_uring_setup": 425}
_SAME_ON_ALL |= {"io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428}
_SAME_ON_ALL |= {"move_mount": 429, "fsopen": 430, "fsmount": 432}

# machine -> (audit architecture, numbers of the calls that a kernel never needs)
DENIED: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "add_key": 248,
        "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "kcmp": 312,
        "userfaultfd": 323, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "unshare": 272, "setns": 308, "personality": 135,
        "open_by_handle_at": 304, "swapon": 167, "reboot": 169, "acct": 163, **_SAME_ON_ALL,
    }),
    "aarch64": (0xC00000B7, {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "add_key": 217,
        "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "kcmp": 272,
        "userfaultfd": 282, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "unshare": 97, "setns": 268, "personality": 92,
        "open_by_handle_at": 265, "swapon": 224, "reboot": 142, "acct": 89, **_SAME_ON_ALL,
    }),
}  # fmt: skip
_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_NETWORK_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET)
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/sys")
DEVICE_NODES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class Plan:
    """How far one worker is shut in; travels to it as JSON."""

    tier: int
    namespaces: bool = False
    user_namespace: bool = False
    uid: int | None = None
    landlock: bool = False
    seccomp: bool = False
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    cuda: bool = False
    processes: int = 0  # 0: no limit of its own
    file_bytes: int = 1 << 30

    def says(self) -> str:
        parts = {
            "namespaces": self.namespaces, "private root folder": self.namespaces,
            f"uid {self.uid}": self.uid is not None, "Landlock": self.landlock,
            "seccomp": self.seccomp,
        }  # fmt: skip
        return f"tier {self.tier}: " + (", ".join(k for k, on in parts.items() if on) or "limits")


def plan_from(fields: Mapping[str, Any]) -> Plan:
    """A plan that travelled as JSON."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Plan(**values)


def candidates_for(
    *, root: bool, uid: int, readable: Sequence[str], writable: Sequence[str], cuda: bool
) -> tuple[Plan, ...]:
    """The plans to try on this machine, best first."""
    shared: dict[str, Any] = {"readable": tuple(readable), "writable": tuple(writable)}
    shared["cuda"] = cuda
    landlock = landlock_version() > 0
    seccomp = platform.machine() in DENIED
    own = uid if root else None
    first = Plan(2, True, not root, own, landlock, True, processes=2048, **shared)
    plans = [first, replace(first, landlock=False)] if seccomp else []
    if root and seccomp:
        plans.append(Plan(1, uid=own, landlock=landlock, seccomp=True, processes=2048, **shared))
        plans.append(replace(plans[-1], landlock=False))
    if seccomp and landlock:
        plans.append(Plan(1, landlock=True, seccomp=True, **shared))
    return (*dict.fromkeys(plans), Plan(0, **shared))


def _call(name: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, *values: int) -> None:
    padded = (*values, 0, 0, 0, 0)[:4]
    _call(f"prctl {option}", libc.prctl(option, *map(ctypes.c_ulong, padded)))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    arguments = (source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode())
    _call(f"mount {target}", libc.mount(*arguments))


def _syscall(name: str, number: int, *arguments: object) -> int:
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def leave_namespaces(plan: Plan) -> None:
    """In the warden, before it forks: the next child starts new namespaces."""
    if not plan.namespaces:
        return
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC
    _call("unshare", libc.unshare(flags | (CLONE_NEWUSER if plan.user_namespace else 0)))
    if plan.user_namespace:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def enter(plan: Plan, folder: str) -> None:
    """In the worker, while it is still our code alone: take everything away but what it needs."""
    if plan.namespaces:
        _private_root(plan, folder)
    os.chdir(folder)
    _set_limits(plan)
    if plan.uid is not None:
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    elif plan.user_namespace:
        _drop_capabilities()
    prctl(PR_SET_PDEATHSIG, 9)  # after the change of uid, which clears it
    if plan.tier > 0:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if plan.landlock:
        _restrict_files(plan)
    if plan.seccomp:
        _install_filter()


def _set_limits(plan: Plan) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: plan.file_bytes,
        resource.RLIMIT_NOFILE: 4096,
    }
    if plan.processes:
        limits[resource.RLIMIT_NPROC] = plan.processes
    for kind, wanted in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def _drop_capabilities() -> None:
    header = struct.pack("<Ii", 0x20080522, 0)
    _syscall("capset", _CAPSET[platform.machine()], header, bytes(24))


def _private_root(plan: Plan, folder: str) -> None:
    """Build a root directory of bind mounts on a tmpfs and move into it."""
    # Here and not in the warden: pivot_root would move the warden, too.
    _call("unshare", libc.unshare(CLONE_NEWNS))
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = os.path.join(folder, ".root")
    os.makedirs(root, exist_ok=True)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=256m,mode=755")
    for place in ("tmp", "dev/shm"):  # before what is shown: libraries may lie below
        os.makedirs(f"{root}/{place}")
        _mount("tmpfs", f"{root}/{place}", "tmpfs", MS_NOSUID | MS_NODEV, "size=4g,mode=1777")
    for path in dict.fromkeys((*SYSTEM_FOLDERS, *plan.readable)):
        _show(root, path, read_only=True)
    for path in dict.fromkeys((folder, *plan.writable)):
        _show(root, path, read_only=False)
    _devices(root, cuda=plan.cuda)
    os.makedirs(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    os.makedirs(f"{root}/.old")
    number = _PIVOT_ROOT[platform.machine()]
    _syscall("pivot_root", number, root.encode(), f"{root}/.old".encode())
    os.chdir("/")
    _call("umount2", libc.umount2(b"/.old", MNT_DETACH))
    os.rmdir("/.old")


def _show(root: str, path: str, *, read_only: bool) -> None:
    target = root + path
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, target, None, MS_BIND | MS_REC)
    if read_only:
        attributes = struct.pack("<QQQQ", ATTR_READ_ONLY_NO_SUID, 0, 0, 0)
        number, flags = _SAME_ON_ALL["mount_setattr"], ctypes.c_uint(AT_RECURSIVE)
        rest = (flags, attributes, ctypes.c_size_t(len(attributes)))
        _syscall(f"mount_setattr {path}", number, AT_FDCWD, target.encode(), *rest)


def _devices(root: str, *, cuda: bool) -> None:
    os.makedirs(f"{root}/dev", exist_ok=True)
    names = list(DEVICE_NODES)
    if cuda:
        names += sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))
    for name in names:
        _show(root, f"/dev/{name}", read_only=False)
    links = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
    for name, target in links.items():
        os.symlink(target, f"{root}/dev/{name}")


# --- seccomp: a deny list, as classic BPF -----------------------------------------------------

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def _install_filter() -> None:
    machine = platform.machine()
    architecture, denied = DENIED[machine]
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), refuse, (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, 0x40000000), refuse]  # the x32 numbers
    for number in denied.values():
        program += [(_EQUAL, 0, 1, number), refuse]
    program += [(_EQUAL, 1, 0, _SOCKET_CALL[machine]), allow, (_LOAD, 0, 0, 16)]
    for family in _NETWORK_FAMILIES:
        program += [(_EQUAL, 0, 1, int(family)), refuse]
    program += [allow]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    pointer = ctypes.cast(ctypes.c_char_p(header), ctypes.c_void_p).value or 0
    prctl(PR_SET_SECCOMP, 2, pointer)


# --- Landlock: which files may be read and written --------------------------------------------

_READ = 1 | 4 | 8  # execute, read file, read folder
_TRUNCATE = 1 << 14
_LANDLOCK = {"create": 444, "add": 445, "restrict": 446}


def landlock_version() -> int:
    try:
        arguments = (None, ctypes.c_size_t(0), ctypes.c_uint(1))
        return _syscall("landlock", _LANDLOCK["create"], *arguments)
    except OSError:
        return 0


def _restrict_files(plan: Plan) -> None:
    version = landlock_version()
    all_rights = (1 << (13 + (version >= 2) + (version >= 3))) - 1
    network = 3 if version >= 4 else 0
    scope = 3 if version >= 6 else 0
    attributes = struct.pack("<QQQ", all_rights, network, scope)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    arguments = (attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    rules = _syscall("landlock", _LANDLOCK["create"], *arguments)
    allowed = [(p, _READ) for p in (*SYSTEM_FOLDERS, *plan.readable, "/proc", "/dev")]
    allowed += [(p, all_rights) for p in (os.getcwd(), *plan.writable)]
    allowed += [(f"/dev/{name}", 2 | 4) for name in DEVICE_NODES]
    if plan.namespaces:  # there these are this worker's own
        allowed += [(path, all_rights) for path in ("/tmp", "/dev/shm")]
    if plan.cuda:  # cuInit opens its devices, and truncates a file of its own process
        allowed += [(f"/dev/{n}", 2 | 4) for n in os.listdir("/dev") if n.startswith("nvidia")]
        allowed.append(("/proc/self", all_rights & (_READ | 2 | _TRUNCATE)))
    for path, rights in allowed:
        if os.path.exists(path):
            _allow(rules, path, rights)
    restrict = (ctypes.c_int(rules), ctypes.c_uint(0))
    _syscall("landlock_restrict_self", _LANDLOCK["restrict"], *restrict)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= 1 | 2 | 4  # execute, write and read are all that a file has
        rule = struct.pack("<Qi", rights, descriptor)
        arguments = (ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))
        _syscall(f"landlock {path}", _LANDLOCK["add"], *arguments)
    finally:
        os.close(descriptor)


# --- the self-test, run inside ----------------------------------------------------------------


def probe(plan: Plan, secret: str, judge_pid: int, must_read: Sequence[str]) -> dict[str, bool]:
    """What holds in here. Each entry is True when it is as the tier promises."""
    found = {"interpreter and libraries readable": all(map(_readable, must_read))}
    if plan.cuda:
        found["CUDA starts"] = _cuda_starts()
    if plan.tier >= 1:
        found["no network"] = not _can(lambda: socket.socket(socket.AF_INET).close())
        found["no ptrace"] = libc.ptrace(0, 0, 0, 0) != 0  # TRACEME: harmless where it works
        if plan.namespaces or plan.landlock or plan.uid is not None:
            found["judge's files hidden"] = not _readable(secret)
        if plan.uid is not None and not plan.namespaces:
            found["judge cannot be signalled"] = not _can(lambda: os.kill(judge_pid, 0))
    if plan.namespaces:
        found["only own processes visible"] = sum(n.isdigit() for n in os.listdir("/proc")) <= 3
        found["no writing outside"] = not os.access("/usr", os.W_OK)
    return found


def _readable(path: str) -> bool:
    return _can(lambda: os.close(os.open(path, os.O_RDONLY)))


def _can(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _cuda_starts() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def main(config: Mapping[str, Any]) -> None:
    """The self-test as a worker's program."""
    options = config["options"]
    channel = Channel(socket.socket(fileno=config["descriptors"][0]))
    plan = plan_from(config["plan"])
    found = probe(plan, options["secret"], options["judge"], options["must_read"])
    channel.send_json(found, time.monotonic() + 5)
    os._exit(0)  # tidying up an interpreter that has loaded PyTorch takes a while
