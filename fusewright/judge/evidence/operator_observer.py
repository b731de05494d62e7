"""What sees every operator of PyTorch that is called within; the base of whoever counts or guards.

PyTorch would have each call of a mode pass by its compiler, to keep that out, and imports it for
that: a second and more, in a process that compiles nothing.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of a process that never compiles."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
