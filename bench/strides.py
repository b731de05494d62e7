"""Which operators of PyTorch lay their results otherwise than fake tensors of the CPU say.

    pip install expecttest
    python bench/strides.py [--device cpu|cuda] [--samples 40] [--dtype float32]

PyTorch's own samples of every operator run as they are and on tensors that lie otherwise, and their
results are compared with those of fake tensors. What is printed needs a rule in `strides.ON_CPU`
or `strides.ON_CUDA`, unless it has one: a `*` stands before those.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fusewright.frontend.capture import _order
from fusewright.frontend.eager_strides import RULES
from tests.support.agreement import moved

Tensor = torch.Tensor
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda t: t,
    "channels last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "turned": lambda t: t.permute(_back(t)).contiguous().permute(_back(t)),
    "swapped": lambda t: t.mT.contiguous().mT,
    "expanded": lambda t: t[:1].expand(t.shape),
    "a piece": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=tuple(RULES))
    options.add_argument("--samples", type=int, default=40, help="of each operator, at most")
    options.add_argument("--dtype", default="float32")
    given = options.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    tried, ruled = 0, {name.split(".")[1] for name in RULES[given.device]}
    for info in op_db:
        if info.name.startswith("_refs") or getattr(torch, given.dtype) not in info.dtypes:
            continue
        met = set()
        dtype = getattr(torch, given.dtype)
        for layout, k, said, eager in compared(info, dtype, given.samples, given.device):
            tried += 1
            if _order(said) != _order(eager) and (layout, k, eager.dim()) not in met:
                met.add((layout, k, eager.dim()))
                mark = "*" if info.name.split(".")[-1] in ruled else " "
                place = f"{info.name} {info.variant_test_name}, {layout}, result {k}"
                print(f"{mark} {place}: {said.stride()} for {eager.stride()}", flush=True)
    print(f"{tried} results")
    return 0


def compared(
    info: Any, dtype: torch.dtype, samples: int, device: str
) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Of each sample in each layout, each result: its number, as it is said, and eager's."""
    for sample in [*info.sample_inputs("cpu", dtype)][:samples]:
        values, form = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        for layout, lay in LAYOUTS.items():
            laid = [lay(v) if _is_laid(v) else v for v in values]
            try:
                eager = results(info.op, moved(laid, device), form)
                with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    fake = [mode.from_tensor(v) if isinstance(v, Tensor) else v for v in laid]
                    said = results(info.op, fake, form)
            except Exception:  # noqa: BLE001 -- what one of both refuses is not compared
                continue
            for k, pair in enumerate(zip(said, eager, strict=False)):
                if pair[1].numel() and pair[1].layout is torch.strided:
                    yield layout, k, *pair


@torch.no_grad()
def results(call: Callable[..., object], values: list[object], form: Any) -> list[Tensor]:
    args, kwargs = pytree.tree_unflatten(values, form)
    return [t for t in pytree.tree_leaves(call(*args, **kwargs)) if isinstance(t, Tensor)]


def _is_laid(value: object) -> bool:
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return value.dim() > 1 and value.numel() > 0


def _back(t: Tensor) -> list[int]:
    return [*range(t.dim())][::-1]


if __name__ == "__main__":
    sys.exit(main())
