"""The steps of a `forward` as a function of tensors, for who calls them otherwise than its guard
does: PyTorch's compiler, as an operator (`traced_operator`), or a CUDA graph (`replay_support`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.emit.formatter import tidy
from fusewright.emit.guard import ForwardGuard
from fusewright.emit.python_text import tuple_text
from fusewright.emit.runtime_snippets import Snippet
from fusewright.frontend.capture import Captured
from fusewright.targets.target import Target


@dataclass(frozen=True)
class LaunchedAgain:
    """How `forward` asks for the results of a call that is as an earlier one. text: gives them, or
    nothing.  results: the variable that they are bound to."""

    text: str
    results: str


@dataclass(frozen=True)
class StepsFunction:
    """The steps of a `forward`, whose results lie in memory that nobody else sees.

    where: its first parameters, the free sizes and the device.  inputs: the tensors among the
    arguments.  state: the variables of the model's tensors.  held: in place of these, the one of a
    tuple of them, or "".  made: the variables of the tensors that it returns.  packed: the result
    of `forward`, made of these.  written: the positions of the tensors of the model that it
    changes.  replayed: where calls that come back are launched at once: how one does so where all
    is as it was; else None.
    """

    where: tuple[str, ...]
    inputs: tuple[str, ...]
    state: tuple[str, ...]
    held: str
    made: tuple[str, ...]
    packed: str
    written: tuple[int, ...] = ()
    replayed: LaunchedAgain | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of the function."""
        return (*self.where, *self.inputs, *([f"*{self.held}"] if self.held else self.state))

    @property
    def returned(self) -> str:
        """What the function returns."""
        return self.made[0] if len(self.made) == 1 else f"[{', '.join(self.made)}]"

    def again(self, own: str) -> list[str]:
        """The lines of `forward` for a call that is like an earlier one. own: the name of its class
        as text."""
        if not self.replayed:
            return []
        counted = [
            f"{counts}[{own}] += 1" for counts in ("_FUSEWRIGHT_CALLS", "_FUSEWRIGHT_AT_ONCE")
        ]
        text, results = self.replayed.text, self.replayed.results
        bound = f"[{', '.join(self.made)}] = {results}"
        return [
            "# As at an earlier call, in everything: it is launched at once.",
            f"if {results} := {text}:",
            *(f"    {line}" for line in (*counted, bound, f"return {self.packed}")),
        ]

    def called(self, mode: str) -> list[str]:
        """The lines of `forward` that call it, with the suffix of its name."""
        steps = f"self.fusewright_steps{mode}"
        call = f"{steps}({', '.join(self.parameters)})"
        if self.replayed:
            state = self.held or tuple_text(self.state)
            given = [tuple_text(self.where), tuple_text(self.inputs), state]
            given += [f"{self.written}"] * bool(self.written)
            call = f"_fusewright_replayed(self, {steps}, {', '.join(given)})"
        if self.packed == self.returned:
            return [f"return {call}"]
        return [f"{self.returned} = {call}", f"return {self.packed}"]

    def method(self, mode: str, statements: Sequence[str]) -> list[str]:
        """The method that runs the steps."""
        return [
            "@staticmethod",
            f"def fusewright_steps{mode}({', '.join(self.parameters)}):",
            '    """What `forward` does where its guard holds."""',
            *(f"    {tidy(statement)}" for statement in statements),
        ]


def steps_function(
    captured: Captured,
    target: Target,
    guard: ForwardGuard,
    made: Sequence[str],
    packed: str,
) -> StepsFunction | None:
    """The function with the steps of a `forward`; None where they are none.

    made: the variables of the tensors that the outputs are made of.  packed: the result.
    """
    if not guard.inputs or captured.replaced or not captured.graph.returns_its_own:
        return None
    device = ["device"] * (target.language == "cuda")
    return StepsFunction(
        (*(guard.sizes[size.name] for size in captured.graph.free), *device),
        tuple(guard.inputs),
        () if guard.state else tuple(guard.tensors),
        guard.state if guard.tensors else "",
        tuple(made),
        packed,
        _written(captured, guard),
        _again(guard) if guard.replayed else None,
    )


def _again(guard: ForwardGuard) -> LaunchedAgain:
    """Asks C++; what that does not look at comes first."""
    assert guard.table is not None, "who is launched at once is compared as a whole"
    given = ", ".join(["self", guard.table.function, *guard.inputs])
    text = " and ".join([*guard.others, f"{Snippet.AGAIN}({given})"])
    return LaunchedAgain(f"({text})" if guard.others else text, guard.names.fresh("results"))


def _written(captured: Captured, guard: ForwardGuard) -> tuple[int, ...]:
    """The positions of the model's tensors that a call changes."""
    place = {name: k for k, name in enumerate(guard.tensors)}
    names = (guard.locals.get(str(n["name"])) for n in captured.graph.written if n.op != "input")
    return tuple(sorted({place[name] for name in names if name in place}))
