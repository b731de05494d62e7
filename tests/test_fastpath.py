"""Encoder layers and attention with masks are what eager makes of them without gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fusewright.capture import capture, state_of
from fusewright.errors import CaptureFailed
from fusewright.fastpath import unwatched
from fusewright.interpret import interpret
from fusewright.judge.zeros import OtherZeros

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
HIDDEN = PADDED | torch.tensor([[False], [True], [False]])
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
BLIND = CAUSAL | (torch.arange(5) == 2)[:, None]


def added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def layer(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)  # type: ignore[arg-type]


def encoder(nested: bool) -> nn.Module:
    return nn.TransformerEncoder(layer(), 2, enable_nested_tensor=nested)  # type: ignore[arg-type]


def attention(**options: object) -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True, **options)  # type: ignore[arg-type]


Made = tuple[Callable[[], nn.Module], str, dict[str, object]]
MODULES: dict[str, Made] = {
    "layer": (layer, "src", {}),
    "norm first": (lambda: layer(norm_first=True, activation="gelu"), "src", {}),
    "three heads": (lambda: nn.TransformerEncoderLayer(9, 3, 8, batch_first=True), "src", {}),
    "sequence first": (lambda: nn.TransformerEncoderLayer(8, 2, 16), "src", {}),
    "encoder": (lambda: encoder(nested=False), "src", {}),
    "attention": (attention, "attn", {}),
    "attention alone": (attention, "attn", {"need_weights": False}),
    "weights of heads": (attention, "attn", {"average_attn_weights": False}),
    "added keys": (lambda: attention(add_bias_kv=True), "attn", {}),
}
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padded": {"padding": PADDED},
    "hidden": {"padding": HIDDEN},
    "hidden, added": {"padding": added(HIDDEN)},
    "blind, added": {"mask": added(BLIND)},
    "both": {"padding": HIDDEN, "mask": CAUSAL},
}


class Model(nn.Module):
    """One of the modules, with its masks as arguments."""

    def __init__(self, made: Made, names: tuple[str, ...]) -> None:
        super().__init__()
        make, self.kind, self.options = made
        self.names = names
        self.inner = make()
        self.eval()

    def forward(self, x: Tensor, *masks: Tensor) -> object:
        padding = "src_key_padding_mask" if self.kind == "src" else "key_padding_mask"
        mask = "attn_mask" if self.kind == "attn" else "src_mask"
        words = {"padding": padding, "mask": mask}
        given = {words[n]: m for n, m in zip(self.names, masks, strict=True)}
        if isinstance(self.inner, nn.MultiheadAttention):
            return self.inner(x, x, x, **given, **self.options)
        return self.inner(x, **given)


def cases() -> list[tuple[str, str]]:
    """An encoder asks whether its mask is causal, so only the data knows its path."""
    pairs = [(module, mask) for module in MODULES for mask in MASKS]
    return [(o, m) for o, m in pairs if o != "encoder" or "mask" not in MASKS[m]]


def tensors(made: object) -> list[Tensor]:
    return [t for t in (made if isinstance(made, tuple) else (made,)) if isinstance(t, Tensor)]


@pytest.mark.parametrize(("module", "mask"), cases())
def test_masked_rows_are_as_eager(module: str, mask: str) -> None:
    model = Model(MODULES[module], tuple(MASKS[mask]))
    x = torch.cat([X, X[..., :1]], -1) if module == "three heads" else X
    x = X.transpose(0, 1).contiguous() if module == "sequence first" else x
    inputs = [x, *MASKS[mask].values()]
    with torch.no_grad():
        expected = tensors(model(*inputs))
    made = capture(model, inputs)
    found = interpret(made.graph, inputs, state_of(made, model))
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, equal_nan=True)


@pytest.mark.parametrize("mask", [PADDED, HIDDEN, added(PADDED)])
def test_an_encoder_that_packs_its_rows_is_not_captured(mask: Tensor) -> None:
    model = Model((lambda: encoder(nested=True), "src", {}), ("padding",))
    with pytest.raises(CaptureFailed, match="enable_nested_tensor=False"):
        capture(model, [X, mask])
    model.inner.train()
    for child in model.inner.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    assert capture(model, [X, mask]).graph  # in training nothing is packed


@pytest.mark.parametrize("nested", [False, True])
def test_who_looks_on_does_not_change_the_path(nested: bool) -> None:
    """The judge's float64 run is under a mode, and has to be of the path that eager takes."""
    model = encoder(nested).eval()
    with torch.no_grad():
        expected = model(X, src_key_padding_mask=HIDDEN)
        with OtherZeros(), unwatched():
            found = model(X, src_key_padding_mask=HIDDEN)
        exact = model.double()
        with OtherZeros(), unwatched():
            wide = exact(X.double(), src_key_padding_mask=HIDDEN)
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(wide.float(), expected, equal_nan=True)
