"""Encoder layers and attention with masks are what eager makes of them without gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.common.unobserved_layers import unwatched
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture, state_of
from fusewright.ir.graph import toposort
from fusewright.ir.interpreter import interpret
from fusewright.judge.evidence.signed_zeros import OtherZeros

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
HIDDEN = PADDED | torch.tensor([[False], [True], [False]])
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
INNER = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
BLIND = CAUSAL | (torch.arange(5) == 2)[:, None]


def added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def layer(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)  # type: ignore[arg-type]


def encoder(nested: bool, norm: nn.Module | None = None) -> nn.Module:
    return nn.TransformerEncoder(layer(), 2, norm, enable_nested_tensor=nested)  # type: ignore[arg-type]


def shifted() -> nn.Module:
    norm = nn.LayerNorm(8)
    nn.init.normal_(norm.bias)  # what is 0 before is not behind
    return norm


class Decoder(nn.Module):
    """Reads its own input, which its mask is for."""

    def __init__(self) -> None:
        super().__init__()
        one = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerDecoder(one, 2)

    def forward(self, x: Tensor, src_mask: Tensor | None = None, **given: Tensor) -> Tensor:
        made: Tensor = self.layers(x, x.flip(1), src_mask, None, given.get("src_key_padding_mask"))
        return made


def attention(**options: object) -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True, **options)  # type: ignore[arg-type]


Made = tuple[Callable[[], nn.Module], str, dict[str, object]]
MODULES: dict[str, Made] = {
    "layer": (layer, "src", {}),
    "norm first": (lambda: layer(norm_first=True, activation="gelu"), "src", {}),
    "three heads": (lambda: nn.TransformerEncoderLayer(9, 3, 8, batch_first=True), "src", {}),
    "sequence first": (lambda: nn.TransformerEncoderLayer(8, 2, 16), "src", {}),
    "encoder": (lambda: encoder(nested=False), "encoder", {}),
    "encoder that packs": (lambda: encoder(nested=True, norm=shifted()), "encoder", {}),
    "decoder": (Decoder, "src", {}),
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
    "inner": {"padding": INNER},
    "causal": {"mask": CAUSAL},
    "causal, added": {"mask": added(CAUSAL)},
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
        padding = "key_padding_mask" if self.kind == "attn" else "src_key_padding_mask"
        mask = {"attn": "attn_mask", "encoder": "mask", "src": "src_mask"}[self.kind]
        words = {"padding": padding, "mask": mask}
        given = {words[n]: m for n, m in zip(self.names, masks, strict=True)}
        if isinstance(self.inner, nn.MultiheadAttention):
            return self.inner(x, x, x, **given, **self.options)
        return self.inner(x, **given)


def cases() -> list[tuple[str, str]]:
    """All pairs, but for masks of which only stacks of layers ask something, and for one of numbers
    that packs rows by what it hides, which no graph says."""
    stacks = ("encoder", "encoder that packs", "decoder")
    pairs = [(module, mask) for module in MODULES for mask in MASKS]
    asked = [
        (o, m) for o, m in pairs if o in stacks or m not in ("inner", "causal", "causal, added")
    ]
    return [pair for pair in asked if pair != ("encoder that packs", "hidden, added")]


def tensors(made: object) -> list[Tensor]:
    return [t for t in (made if isinstance(made, tuple) else (made,)) if isinstance(t, Tensor)]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("checked", [True, False])
def test_an_encoder_that_packs_by_numbers_or_unchecked_is_not_captured(checked: bool) -> None:
    model = Model((lambda: encoder(nested=True), "encoder", {}), ("padding",))
    model.inner.mask_check = checked
    mask = added(PADDED) if checked else PADDED
    with pytest.raises(CaptureFailed, match="enable_nested_tensor=False"):
        capture(model, [X, mask])
    model.inner.train()
    for child in model.inner.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    assert capture(model, [X, mask]).graph  # in training nothing is packed


@pytest.mark.slow
@pytest.mark.parametrize("padding", [PADDED, HIDDEN, INNER, ~PADDED, PADDED & False])
def test_one_graph_packs_for_the_masks_that_allow_it(padding: Tensor) -> None:
    model = Model(MODULES["encoder that packs"], ("padding",))
    made = capture(model, [X, PADDED])
    with torch.no_grad():
        expected = model(X, padding)
    (found,) = interpret(made.graph, [X, padding], state_of(made, model))
    torch.testing.assert_close(found, expected, equal_nan=True)


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


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
@pytest.mark.parametrize(
    ("activation", "device", "training", "tanh"),
    [
        ("gelu", "cuda", False, True),
        ("gelu", "cuda", True, False),
        ("gelu", "cpu", False, False),
        ("relu", "cuda", False, False),
    ],
)
def test_gelu_of_the_fast_path_on_a_gpu_is_another_function(
    activation: str, device: str, training: bool, tanh: bool, module: bool, norm_first: bool
) -> None:
    """It is the approximation by tanh there, of which the layer's other path is made, too."""
    word = {"gelu": nn.GELU(), "relu": nn.ReLU()}[activation] if module else activation
    model = layer(dropout=0.0, activation=word, norm_first=norm_first).train(training)
    made = capture(model, [X * 3], device)
    calls = [n.short_name for n in toposort(made.graph.roots) if n.op == "library"]
    assert "_transformer_encoder_layer_fwd" not in calls
    (found,) = interpret(made.graph, [X * 3], state_of(made, model))
    assert {"_ff_block", "_sa_block"}.isdisjoint(model.__dict__)
    by = {"gelu": nn.GELU("tanh" if tanh else "none"), "relu": nn.ReLU()}[activation]
    model.activation = by  # as a parameter needs a gradient, eager takes the other path
    torch.testing.assert_close(found, model(X * 3))


class Blind(nn.TransformerEncoderLayer):
    def _sa_block(self, x: Tensor, *_: object, **__: object) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(x)


def test_a_fast_path_asks_no_method_of_a_class_of_the_users() -> None:
    model = Blind(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True).eval()
    plain = layer(dropout=0.0, activation=nn.GELU("tanh")).eval()
    plain.load_state_dict(model.state_dict())
    made = capture(model, [X], "cuda")
    (found,) = interpret(made.graph, [X], state_of(made, model))
    torch.testing.assert_close(found, plain(X))


def test_a_layer_by_itself_is_masked_as_eager() -> None:
    """Not only within another model: a whole row is hidden, which one path makes NaN of."""
    model, inputs = layer(dropout=0.0).eval(), {"src": X, "src_key_padding_mask": HIDDEN}
    with torch.no_grad():
        expected = model(**inputs)
    made = capture(model, [X, None, HIDDEN])
    (found,) = interpret(made.graph, [X, HIDDEN], state_of(made, model))
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert bool(expected.isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_layers_on_a_gpu_are_as_eager(activation: str) -> None:
    model = layer(dropout=0.0, activation=activation).eval().requires_grad_(False).cuda()
    fused = fusewright.optimize(model, X.cuda(), options={"target": "cuda"})
    x = torch.randn(3, 5, 8).cuda()
    torch.testing.assert_close(fused(x), model(x), rtol=1e-6, atol=1e-5)
