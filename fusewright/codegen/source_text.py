"""The C++ or CUDA of an emitted file as two texts, which stand in two places of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceText:
    """library: what kernels call of the device library.  kernels: a struct and an entry for each.

    Each opens and closes its namespaces, so a compiler may be given one behind the other.
    """

    library: str
    kernels: str

    @property
    def whole(self) -> str:
        """What is compiled."""
        return f"{self.library}\n\n{self.kernels}"


def source_text(library: str, kernels: list[str]) -> SourceText:
    """library: it opens the namespace of both.  kernels: the texts that come behind it."""
    opens, closes = "namespace fusewright {", "}  // namespace fusewright"
    return SourceText(f"{library}\n\n{closes}", "\n\n".join([opens, *kernels, closes]) + "\n")
