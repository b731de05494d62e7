"""Values -> a module that holds them, by each of the ways in which PyTorch lets one give it others.

The first three write into the memory that a parameter has. The others give it new memory, or put a
new parameter in its place, as `load_state_dict(assign=True)`, quantizers and adapters do.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

REPLACING = ("storage", "assign", "replaced")


def entries(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, tied ones under each of their names."""
    kept = nn.Module.state_dict(model, keep_vars=True)
    return {name: t for name, t in kept.items() if isinstance(t, Tensor)}


def hold(model: nn.Module, values: Mapping[str, Tensor], how: str) -> None:
    """`values` are the module's to keep wherever it does not copy them."""
    if how in ("load_state_dict", "assign"):
        # Buffers that were None until a call bound them are no part of what is loaded.
        later = {name: t for name, t in entries(model).items() if name not in values}
        # The module's own code, which may have another form.
        model.load_state_dict({**later, **values}, **({"assign": True} if how == "assign" else {}))
    elif how == "replaced":
        _replace(model, values)
    else:
        known = entries(model)
        with torch.no_grad():
            for name, value in values.items():
                if how == "storage":
                    known[name].data = value
                else:
                    target = known[name].data if how == "data" else known[name]
                    target.copy_(value)


def _replace(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """A new tensor for each one; names of one tensor still have one."""
    made: dict[int, Tensor] = {}
    for name, old in entries(model).items():
        if name not in values:
            continue
        new = made.get(id(old), values[name])
        if isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, old.requires_grad)
        made[id(old)] = new
        place, _, own = name.rpartition(".")
        setattr(model.get_submodule(place), own, new)
