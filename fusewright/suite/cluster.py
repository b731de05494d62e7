"""What the nodes of a cluster say of themselves -> whether they fit, and what a run may ask.

Nothing here knows Ray: `ray_runner.py` asks the nodes, and asks Ray for what is chosen here.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from fusewright import __version__
from fusewright.common.package import own_digest
from fusewright.errors import BadUsage
from fusewright.targets.target import TARGETS

RUN_CPUS = 4  # processors that a run has which times nothing on them: so many of its processes work


@dataclass(frozen=True)
class Versions:
    """Of what must be the same on all nodes. fusewright: with a hash of its source files; "" where
    it cannot be imported."""

    python: str
    torch: str
    fusewright: str


@dataclass(frozen=True)
class Node:
    """A machine of the cluster. cpus, gpus: how many of them Ray gives away.  gpu: the kind of its
    GPUs.  capability: theirs, as in "9.0".  processor: the kind of its processor."""

    id: str
    host: str
    cpus: int
    gpus: int
    gpu: str
    capability: str
    processor: str
    versions: Versions

    def device(self, *, on_gpus: bool) -> str:
        """The kind of machine that results are of."""
        return self.gpu if on_gpus else self.processor


@dataclass(frozen=True)
class Share:
    """What one run asks for. nodes: the ids of those that it may run on.  at_once: how many such
    runs the cluster has room for."""

    nodes: tuple[str, ...]
    cpus: int
    gpus: int
    at_once: int


def own_versions() -> Versions:
    """Of this machine."""
    own = f"{__version__} ({own_digest().hex()[:8]})"
    return Versions(platform.python_version(), metadata.version("torch"), own)


def check_versions(nodes: Sequence[Node], own: Versions) -> None:
    """Raise BadUsage unless all of these have what the asking machine has."""
    wrong = dict.fromkeys(told for node in nodes if (told := _difference(node, own)))
    if wrong:
        raise BadUsage(
            f"--ray: nodes of the cluster differ from this machine: {'; '.join(wrong)}. Install "
            "the same Python, PyTorch and fusewright on all of them."
        )


def _difference(node: Node, own: Versions) -> str:
    if not node.versions.fusewright:
        return f"{node.host} cannot import fusewright"
    pairs = {
        "Python": (node.versions.python, own.python),
        "PyTorch": (node.versions.torch, own.torch),
        "fusewright": (node.versions.fusewright, own.fusewright),
    }
    found = [f"{name} {a}, not {b}" for name, (a, b) in pairs.items() if a != b]
    return f"{node.host} has {' and '.join(found)}" if found else ""


def gpu_nodes(nodes: Sequence[Node], target: str | None) -> tuple[Node, ...]:
    """Those with a GPU that runs for this target need; none, where they need none.

    target: "cpu", "cuda" or an architecture; None: the GPU where there is one.  A run for a GPU
    that is nowhere here compiles and judges nothing, for which it needs processors alone.  Raises
    BadUsage where a GPU is asked for and there is none.
    """
    found = tuple(node for node in nodes if node.gpus)
    if target == "cuda" and not found:
        raise BadUsage("--ray: no node of the cluster has a GPU. Name another target, or cpu.")
    if target in (None, "cuda"):
        return found
    capability = {name: ".".join(map(str, t.arch.capability or ())) for name, t in TARGETS.items()}
    # A GPU that no target is written for may run an older one's kernels.
    apart = {*capability.values()} - {capability[str(target)]}
    return tuple(node for node in found if target != "cpu" and node.capability not in apart)


def shared(nodes: Sequence[Node], *, on_gpus: bool) -> Share | None:
    """A GPU and its part of the processors, or some processors; None where no node has as much."""
    if on_gpus:
        cpus = min((node.cpus // node.gpus for node in nodes), default=0)
        ids = tuple(node.id for node in nodes)
        return Share(ids, cpus, 1, sum(node.gpus for node in nodes)) if nodes else None
    cpus = min(RUN_CPUS, max((node.cpus for node in nodes), default=0))
    fit = [node for node in nodes if cpus and node.cpus >= cpus]
    at_once = sum(node.cpus // cpus for node in fit)
    return Share(tuple(node.id for node in fit), cpus, 0, at_once) if fit else None


def whole(nodes: Sequence[Node], *, on_gpus: bool) -> Share | None:
    """All that one of the largest nodes has, so that no other run is on it.

    Smaller nodes have none of these: what asks for all of a small one could share a large one.
    """
    sizes = {node.id: (node.gpus if on_gpus else 0, node.cpus) for node in nodes if node.cpus}
    if not sizes:
        return None
    gpus, cpus = most = max(sizes.values())
    ids = tuple(name for name, size in sizes.items() if size == most)
    return Share(ids, cpus, gpus, len(ids))
