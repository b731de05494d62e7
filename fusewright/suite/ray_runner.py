"""A suite or an arena on a Ray cluster: each run is a task, which does on its node what a run on
one machine does (`node_run.py`).

A worker or a node that dies takes the runs along that it had, and these are begun anew elsewhere.
That is done here and not left to Ray: it would repeat for ever a run that takes all memory of a
node, and what a run says of itself, a crash of the candidate too, is a result and is never
repeated. Only nodes that were found to have the same software are given anything.
"""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError

from fusewright.common.atomic_write import write_atomically
from fusewright.errors import BadUsage
from fusewright.suite.cluster import (
    Node,
    Share,
    Versions,
    check_versions,
    gpu_nodes,
    own_versions,
    shared,
    whole,
)
from fusewright.suite.node_run import Beside, NodeJob, NodeResult, run_on_node
from fusewright.suite.process_runner import run_alone
from fusewright.suite.run_end import OUT_OF_MEMORY, RunEnd, lost, not_started
from fusewright.suite.runner import Command, Work

TIMES = 4  # that a run is begun, where workers and nodes die under it
LOOK_S = 1.0  # between two looks at whether a task's nodes are alive
REACH_S, ANSWER_S = 5.0, 60.0  # until a head takes a connection; until it, and each node, answers
MOST_BESIDE = 64 << 20  # bytes of a folder's other files
NODE_ID = "ray.io/node-id"  # Ray's own label of each node
CONNECT = """
import logging, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
"""


class RunLostError(Exception):
    """What did a run, or could have done it, is gone."""


@dataclass(frozen=True)
class RayCluster:
    """A `Place`: the cluster whose head listens at this address, HOST:PORT.

    jobs: runs at once; None: as many as it has room for.
    """

    address: str
    jobs: int | None = None

    @property
    def machine(self) -> Sequence[str]:
        """Rows say themselves which kind of machine they are of (`Runner.has`)."""
        return ("a Ray cluster",)

    @property
    def about(self) -> Mapping[str, object]:
        return {"ray": self.address, "jobs": self.jobs or "as many as there is room for"}

    @contextmanager
    def open(self, work: Work) -> Iterator[RayRunner]:
        """The runner; raises BadUsage where there is no such cluster, or none that fits."""
        _reach(self.address)
        ray.init(address=self.address, log_to_driver=False, logging_level=logging.CRITICAL)
        try:
            nodes = _nodes()
            check_versions(nodes, own_versions())
            runner = RayRunner(work, nodes, self.jobs)
            try:
                yield runner
            finally:
                runner.stop()
        finally:
            ray.shutdown()


class RayRunner:
    """Has runs done by tasks of a cluster, any number at once; a `Runner`."""

    def __init__(self, work: Work, nodes: Sequence[Node], jobs: int | None) -> None:
        """nodes: those that may be given runs.  Raises BadUsage where none can do any."""
        with_gpus = gpu_nodes(nodes, work.target)
        self._on_gpus, self._nodes = bool(with_gpus), with_gpus or tuple(nodes)
        self._work, self._task = work, ray.remote(max_calls=1, max_retries=0)(run_on_node)
        room = shared(self._nodes, on_gpus=self._on_gpus)
        alone = whole(self._nodes, on_gpus=self._on_gpus)
        if room is None or alone is None:
            raise BadUsage(
                "--ray: no node of the cluster has a processor to give: ray start --num-cpus=N."
            )
        timing = room.at_once if self._on_gpus else alone.at_once
        self.jobs = jobs or (timing if work.timed else room.at_once)
        self.contests = min(self.jobs, timing)
        self._lock = threading.Lock()
        self._beside: dict[Path, Any] = {}
        self._running: set[Any] = set()
        self._alive, self._looked = frozenset(node.id for node in nodes), time.monotonic()
        self._stopped = False

    def launch(self, command: Command) -> RunEnd:
        """Have one command done by a node, and say what came of it.

        Calls that are timed on processors have a node to themselves; on a GPU, the GPU. What had
        too little memory beside others is run once more, on a node that nobody else is on.
        """
        begin = time.monotonic()
        alone = command.timed and not self._on_gpus
        result = self._result(command, alone=alone)
        if result.end != OUT_OF_MEMORY or alone or self._stopped:
            return result
        again = run_alone(self._result(command, alone=True))
        return replace(again, seconds=round(time.monotonic() - begin, 1))

    def has(self, device: str, /) -> bool:
        """Whether a node of this kind may be given runs."""
        return device in {node.device(on_gpus=self._on_gpus) for node in self._nodes}

    def stop(self) -> None:
        """Kill what is running; nothing new starts."""
        self._stopped = True
        with self._lock:
            for task in self._running:
                ray.cancel(task, force=True)

    def _result(self, command: Command, *, alone: bool) -> RunEnd:
        begin, why = time.monotonic(), list[str]()
        try:
            job = self._job(command)
            for _ in range(TIMES):
                share = self._share(command.device, alone=alone)
                if share is None or self._stopped:
                    break
                try:
                    return self._kept(command, self._told(job, share))
                except OutOfMemoryError:  # Ray ended its worker, since the node's memory was full
                    return not_started("out of memory on the node", time.monotonic() - begin)
                except (RayError, RunLostError) as error:
                    why.append(str(error).splitlines()[0])
                    time.sleep(LOOK_S)
        except OSError as error:
            return not_started(f"cannot start: {error}", time.monotonic() - begin)
        said = why[-1] if len(why) == TIMES else "no node of the cluster is left that could do it"
        return lost(f"begun {len(why)} times and lost: {said}", time.monotonic() - begin)

    def _job(self, command: Command) -> tuple[Any, ...]:
        """What `run_on_node` is given."""
        files = tuple(path.absolute() for path in command.files)
        texts = {str(path): path.read_bytes() for path in files}
        job = NodeJob(self._work, replace(command, files=files), texts, self._on_gpus)
        folders = dict.fromkeys(path.parent for path in files)
        return pickle.dumps(job), *(self._sent(folder) for folder in folders)

    def _sent(self, folder: Path) -> Any:
        """The other files of a folder, which are sent to each node once."""
        with self._lock:
            if folder not in self._beside:
                files = other_files(folder, self._work.output.absolute())
                self._beside[folder] = ray.put(Beside(str(folder), files))
            return self._beside[folder]

    def _share(self, device: str, *, alone: bool) -> Share | None:
        """What a run may ask of the nodes that are alive. device: their kind; "" for any."""
        living = self._living()
        nodes = [
            node for node in self._nodes
            if node.id in living and device in ("", node.device(on_gpus=self._on_gpus))
        ]  # fmt: skip
        return (whole if alone else shared)(nodes, on_gpus=self._on_gpus)

    def _living(self) -> frozenset[str]:
        """The ids of the nodes that are alive."""
        with self._lock:
            if time.monotonic() - self._looked > LOOK_S:
                self._alive, self._looked = frozenset(map(_id, _living_nodes())), time.monotonic()
            return self._alive

    def _told(self, job: tuple[Any, ...], share: Share) -> NodeResult:
        """What a node hands back. Raises RayError and RunLostError where that is lost."""
        asked = {"num_cpus": share.cpus, "num_gpus": share.gpus}
        where = {NODE_ID: f"in({','.join(share.nodes)})"}
        task = self._task.options(**asked, label_selector=where).remote(*job)
        with self._lock:
            self._running.add(task)
        try:
            while not ray.wait([task], timeout=LOOK_S)[0]:
                if self._stopped or self._living().isdisjoint(share.nodes):
                    ray.cancel(task, force=True)
                    raise RunLostError("the nodes that could do it have died")
            told = ray.get(task)
        finally:
            with self._lock:
                self._running.discard(task)
        if isinstance(told, str):
            raise RunLostError(told)
        result: NodeResult = told
        return result

    def _kept(self, command: Command, result: NodeResult) -> RunEnd:
        """How it ended, once what it left is in the folder of results."""
        for suffix, text in result.left.items():
            path = self._work.output / f"{command.name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".log":
                path.write_bytes(text)
            else:
                write_atomically(path, text.decode("utf-8"), force=True)
        return result.end


def other_files(folder: Path, output: Path) -> dict[str, bytes]:
    """What lies in a folder and below it and is no problem or candidate: by its path there.

    output: a folder of results, which is left out.  Raises BadUsage where that is too much to send.
    """
    found, size = dict[str, bytes](), 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        own = path.suffix == ".py" and not any(part.startswith("_") for part in inside.parts)
        if hidden or own or path.is_relative_to(output) or not path.is_file():
            continue
        if (size := size + path.stat().st_size) > MOST_BESIDE:
            raise BadUsage(
                f"--ray: the files beside the problems in {folder} are more than "
                f"{MOST_BESIDE >> 20} MB, which is the most that is sent to nodes. Move those that "
                "no problem reads."
            )
        found[str(inside)] = path.read_bytes()
    return found


def _reach(address: str) -> None:
    """Raise BadUsage unless a Ray cluster takes this machine's requests at this address.

    A process of its own tries first: where something else listens, Ray waits without end.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit()) or "/" in host:
        raise BadUsage(
            f"--ray {address}: give HOST:PORT of the cluster's head, as `ray start --head` prints "
            "it, on a machine of the cluster. Ray Client (ray://) is not supported."
        )
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise BadUsage(f"--ray {address}: nothing answers there: {error}.") from error
    words = [sys.executable, "-c", CONNECT, address]
    try:
        subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise BadUsage(
            f"--ray {address}: what listens there is no head of a Ray cluster: it did not answer "
            f"within {ANSWER_S:.0f} s."
        ) from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise BadUsage(f"--ray {address}: Ray does not connect: {said[-1]}") from error


def _nodes() -> tuple[Node, ...]:
    """The nodes that have anything to give, with what they say of themselves; raises BadUsage.

    One that dies meanwhile is left out: that a node is dead Ray may learn while it is asked.
    """
    asked = dict[Any, Mapping[str, Any]]()
    ask = ray.remote(num_cpus=0, max_calls=1)(_question())
    for node in _living_nodes():
        if {"CPU", "GPU"} & node["Resources"].keys():
            asked[ask.options(label_selector={NODE_ID: _id(node)}).remote()] = node
    silent, deadline = [*asked], time.monotonic() + ANSWER_S
    while silent and time.monotonic() < deadline:
        _, silent = ray.wait(silent, num_returns=len(silent), timeout=LOOK_S)
        living = {_id(node) for node in _living_nodes()}
        for task in [task for task in silent if _id(asked[task]) not in living]:
            ray.cancel(task, force=True)
            silent.remove(task)
            del asked[task]
    if silent or not asked:
        names = ", ".join(asked[task]["NodeManagerHostname"] for task in silent)
        raise BadUsage(f"--ray: no answer from {names}." if names else "--ray: it has no nodes.")
    found = (_node(task, about) for task, about in asked.items())
    return tuple(node for node in found if node)


def _node(task: Any, about: Mapping[str, Any]) -> Node | None:
    """What a node says of itself; None for one that has died."""
    try:
        told = ray.get(task)
    except RayError as error:
        if _id(about) not in map(_id, _living_nodes()):
            return None
        why = str(error).strip().splitlines()[-1]
        raise BadUsage(f"--ray: node {about['NodeManagerHostname']} runs nothing: {why}") from error
    has = about["Resources"]
    versions = Versions(*told.pop("versions"))
    cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
    return Node(_id(about), about["NodeManagerHostname"], cpus, gpus, **told, versions=versions)


def _question() -> Callable[[], dict[str, Any]]:
    """A function that is sent as it is, so that a node without this package answers, too."""

    def answer() -> dict[str, Any]:
        import platform
        from importlib import metadata

        found = {"gpu": "", "capability": "", "processor": ""}
        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = "none"
        try:
            from fusewright.common.devices import gpu_kind, kind_of
            from fusewright.suite.cluster import own_versions

            versions = own_versions()
        except ImportError:
            return {**found, "versions": (platform.python_version(), torch, "")}
        gpu, capability = gpu_kind("0")
        found = {"gpu": gpu, "capability": capability, "processor": kind_of("")}
        return {**found, "versions": (versions.python, versions.torch, versions.fusewright)}

    return answer


def _living_nodes() -> list[dict[str, Any]]:
    every: Callable[[], list[dict[str, Any]]] = ray.nodes
    return [node for node in every() if node["Alive"]]


def _id(node: Mapping[str, Any]) -> str:
    return str(node["NodeID"])
