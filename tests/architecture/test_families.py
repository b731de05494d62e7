"""Generic packages know no family of kernels: what they need of one comes through its interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.source import Source, made_up

# Packages that may ask the registry, and the records of the interface.
ASKS = {"tune", "report", "compiler"}
# Packages behind the families, which may be handed records of the interface.
HANDED = ASKS | {"emit", "build", "suite", "cli"}
INTERFACE, REGISTRY = "kernels/interface", "kernels/registry"
# Families, each after those whose files it may import; `tensor_core` is what three have in common.
CHAINS = (("tensor_core", "gemm", "conv", "attention"), ("rowwise", "scan"), ("pointwise",))


def family(module: str) -> str:
    """The family of a file in a folder of `kernels/`, or ""."""
    parts = module.split("/")
    return parts[1] if parts[0] == "kernels" and len(parts) > 2 else ""


def may_import(module: str, name: str) -> bool:
    """Whether a file may import one of `kernels/`."""
    if not module.startswith("kernels/"):
        package = module.partition("/")[0]
        return name in ((INTERFACE,) * (package in HANDED) + (REGISTRY,) * (package in ASKS))
    own, other = family(module), family(name)
    if module == REGISTRY or own == other or name == INTERFACE:
        return True
    return any(other in chain[: chain.index(own)] for chain in CHAINS if own in chain)


def knowing(source: Source) -> Iterator[tuple[str, str]]:
    """Files that import what they may not of `kernels/`: the family, or the registry."""
    for module in source.modules():
        for _, name in source.imported(module):
            if name.startswith("kernels/") and not may_import(module, name):
                yield module, family(name) or name


def test_generic_packages_know_no_family() -> None:
    assert not set(knowing(Source())), "the family's interface would say it"


def test_every_family_is_in_a_chain() -> None:
    found = {family(module) for module in Source().modules()} - {""}
    assert found == {name for chain in CHAINS for name in chain}


def test_what_knows_a_family_is_found(tmp_path: Path) -> None:
    match = "from fusewright.kernels.gemm.match import product\n"
    registry = "def f():\n    from fusewright.kernels.registry import FAMILIES\n"
    interface = "from fusewright.kernels.interface import KernelFamily\n"
    source = made_up(
        tmp_path,
        {
            "kernels/interface": "",
            "kernels/registry": match,
            "kernels/gemm/match": interface,
            "kernels/tensor_core/tile": match,
            "kernels/conv/match": match,
            "kernels/scan/match": match,
            "codegen/body": interface,
            "fusion/planner": match,
            "emit/forward": interface,
            "emit/guard": registry,
            "compiler/pipeline": registry + interface,
            "report/run_report": match,
        },
    )
    assert set(knowing(source)) == {
        ("codegen/body", "kernels/interface"),
        ("fusion/planner", "gemm"),
        ("emit/guard", "kernels/registry"),
        ("report/run_report", "gemm"),
        ("kernels/tensor_core/tile", "gemm"),
        ("kernels/scan/match", "gemm"),
    }
