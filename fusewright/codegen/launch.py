"""What a kernel's family hands to codegen: how the body is printed, and how the kernel is started.

A family knows its strategy, its device sections and their template arguments; codegen knows
pointers, entries and sources. All that one says to the other is in these records.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from fusewright.ir.graph import FixedSizes, Node
from fusewright.loopnest.nest import AffineAccess
from fusewright.loopnest.reduction_passes import KeepPolicy


@dataclass(frozen=True)
class BodyPolicy:
    """All that the text of a body depends on, besides its nest.

    load: the operand that reads along a row.  inverts_divisors: what a row is divided by is
    inverted once.  simd_rows: many rows may be taken together, each in a lane of a vector.
    fixed_sizes: free sizes, at the only values for which the body is.  staged_reads: what comes
    through shared memory, slot by slot.  placed_reads: by read, how an operand is named that lies
    near by; then results go there, too.  struct_constants: numbers that the struct says of itself.
    """

    keep: KeepPolicy
    load: str = "load"
    inverts_divisors: bool = False
    simd_rows: bool = False
    fixed_sizes: FixedSizes = ()
    staged_reads: tuple[AffineAccess, ...] = ()
    placed_reads: Mapping[Hashable, str] = field(default_factory=dict)
    struct_constants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeTensor:
    """A tensor that a kernel reads otherwise than element by element.

    declaration: of the entry's pointer.  aligned: it starts at a multiple of 16 bytes, as tensor
    maps want it.
    """

    node: Node
    declaration: str
    aligned: bool = False


@dataclass(frozen=True)
class Call:
    """How one of the device library's functions is called, behind the kernel's body."""

    function: str
    template_args: tuple[str | int, ...] = ()
    call_args: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The call of a body named `body`."""
        return f"{self.specialized}({', '.join(['body', *self.call_args])})"

    @property
    def specialized(self) -> str:
        """The function with its template arguments."""
        chosen = ", ".join(map(str, self.template_args))
        return f"{self.function}<{chosen}>" if chosen else self.function


@dataclass(frozen=True)
class Fallback:
    """How a kernel runs where its launch cannot: at other sizes than those that it is for,
    where tensors are not aligned, and where `resident`, a condition, does not hold."""

    policy: BodyPolicy
    launch: Launch
    fixed_sizes: FixedSizes = ()
    resident: str = ""


@dataclass(frozen=True)
class Launch:
    """How a kernel is started.

    call: with accesses of `vector` elements.  scalar: with single elements, where tensors are not
    aligned or free sizes are no multiples of `multiples`; None: the caller has all tensors
    aligned.  vector_tensors: ids of the nodes that are walked by vectors.  workspace: bytes of
    scratch memory, as Python text, "" for none.
    fallback: taken where the call cannot be.  whole_tensors: what the entry takes first.  structs:
    texts of what stands beside the body's.  statements: of the entry, before the call.  needs:
    sections of the device library that no word of the text names.
    """

    call: Call
    vector: int = 1
    scalar: Call | None = None
    multiples: FixedSizes = ()
    vector_tensors: frozenset[int] = frozenset()
    workspace: str = ""
    fallback: Fallback | None = None
    whole_tensors: tuple[WholeTensor, ...] = ()
    structs: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()

    @property
    def aligned_tensors(self) -> frozenset[int]:
        """The ids of walked nodes that must start at a multiple of 16 bytes."""
        whole = self.vector > 1 and self.scalar is None and self.fallback is None
        return self.vector_tensors if whole else frozenset()
