"""Calls that would end CUDA for the process, or read past memory, are refused; others are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusewright.judge import judge
from fusewright.judge.evidence import fatal_cuda_calls
from fusewright.judge.evidence.fatal_cuda_calls import VECTOR_BYTES, Watch
from fusewright.judge.evidence.legal_inputs import DeviceLost, Illegal, asked, tried
from tests.support.judge_in_one_process import HEADER, OneProcess, honest

KINDS = ("efficient", "flash", "cudnn")


class Call:
    """Stands in for one operator on a GPU."""

    def __init__(self, name: str) -> None:
        self.overloadpacket = getattr(torch.ops.aten, name)
        self._schema = getattr(self.overloadpacket, self.overloadpacket.overloads()[0])._schema
        self.is_view, self.tags = False, ()

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return "was made"


def called(name: str, *args: Any, **kwargs: Any) -> Any:
    return Watch().__torch_dispatch__(Call(name), (), args, kwargs)


ROOM = torch.zeros(65)
ALIGNED = ROOM[-ROOM.data_ptr() % VECTOR_BYTES // 4 :][:60]
SHIFTED = ALIGNED[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_fused_attention_is_not_called_between_two_vectors(kind: str) -> None:
    name = f"_scaled_dot_product_{kind}_attention"
    assert called(name, ALIGNED, ALIGNED, ALIGNED, None) == "was made"
    with pytest.raises(RuntimeError, match="between two vectors"):
        called(name, ALIGNED, SHIFTED, ALIGNED, None)
    with pytest.raises(RuntimeError, match="between two vectors"):
        called(name, ALIGNED, ALIGNED, ALIGNED, attn_bias=SHIFTED)


def test_other_operators_take_what_they_get() -> None:
    assert called("add", SHIFTED, SHIFTED) == "was made"


# ---- indices: on a GPU they are tried on the CPU first -------------------------------------------

X, Y = torch.randn(4, 6), torch.rand(4, 6)


def at(*indices: int) -> torch.Tensor:
    return torch.tensor(indices)


# What consumes numbers as places (or asserts about its values), with the last argument legal, and
# one that a kernel of a GPU would end everything on.
CONSUMERS: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor, torch.Tensor]] = {
    "embedding": (lambda i: F.embedding(i, X), at(0, 3), at(0, 4)),
    "embedding, negative": (lambda i: F.embedding(i, X), at(0, 3), at(-1, 3)),
    "embedding_bag": (lambda i: F.embedding_bag(i, X, at(0, 1)), at(0, 3), at(0, 4)),
    "embedding_bag, offsets": (lambda o: F.embedding_bag(at(0, 3, 1), X, o), at(0, 2), at(2, 0)),
    "embedding_bag, max": (
        lambda o: F.embedding_bag(at(0, 3, 1), X, o, mode="max"), at(0, 1, 2), at(0, 2, 1),
    ),
    "gather": (lambda i: X.gather(1, i.view(4, 1)), at(0, 1, 5, 2), at(0, 1, 6, 2)),
    "index_select": (lambda i: X.index_select(0, i), at(0, 3), at(4, 0)),
    "take": (lambda i: X.take(i), at(0, 23), at(24, 0)),
    "put_": (lambda i: X.clone().put_(i, X[0, :2]), at(0, 23), at(24, 0)),
    "index": (lambda i: X[i], at(0, -4), at(0, 4)),
    "index_put": (lambda i: X.clone().index_put_((i,), X[:2]), at(0, 3), at(0, 4)),
    "index_add": (lambda i: X.index_add(0, i, X[:2]), at(0, 3), at(0, 4)),
    "index_copy": (lambda i: X.index_copy(0, i, X[:2]), at(0, 3), at(0, 4)),
    "index_fill": (lambda i: X.index_fill(0, i, 1.0), at(0, 3), at(0, 4)),
    "index_reduce": (lambda i: X.index_reduce(0, i, X[:2], "amax"), at(0, 3), at(0, 4)),
    "scatter": (lambda i: X.scatter(1, i.view(4, 1), 1.0), at(0, 1, 5, 2), at(0, 1, 6, 2)),
    "scatter_add": (
        lambda i: X.scatter_add(1, i.view(4, 1), Y[:, :1]), at(0, 1, 5, 2), at(0, 1, 6, 2),
    ),
    "scatter_reduce": (
        lambda i: X.scatter_reduce(1, i.view(4, 1), Y, "amax"), at(0, 1, 5, 2), at(0, 1, 6, 2),
    ),
    "one_hot": (lambda i: F.one_hot(i, 4), at(0, 3), at(0, 4)),
    "nll_loss": (lambda i: F.nll_loss(X, i), at(0, 5, -100, 2), at(0, 6, 1, 2)),
    "cross_entropy": (lambda i: F.cross_entropy(X, i), at(0, 5, 1, 2), at(0, -1, 1, 2)),
    "multi_margin_loss": (lambda i: F.multi_margin_loss(X, i), at(0, 5, 1, 2), at(0, 6, 1, 2)),
    "max_unpool1d": (
        lambda i: F.max_unpool1d(X[:, :3].reshape(4, 1, 3), i.expand(4, 1, 3), 2),
        at(0, 2, 5), at(0, 2, 6),
    ),
    "repeat_interleave": (lambda i: X.repeat_interleave(i, 0), at(0, 2, 1, 1), at(0, -2, 1, 1)),
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, Y), Y, Y + 1),
    "masked_scatter": (
        lambda n: X.masked_scatter(X > -9, X.flatten()[: int(n)]), at(24), at(23),
    ),
    "assert_async": (lambda n: torch._assert_async(n == 1), at(1), at(2)),
}  # fmt: skip


class Kernel:
    """An operator on a GPU: where its counterpart on the CPU raises, the device is lost."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.overloadpacket, self._schema = real.overloadpacket, real._schema
        self.is_view, self.tags = real.is_view, real.tags

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.real(*args, **kwargs)
        except Exception as error:
            raise DeviceLost("device-side assert triggered") from error


class Gpu(Watch):
    """The watch on a machine whose GPU is the CPU; it is tried on the real one first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(Kernel(func), types, args, kwargs)

    def _rehearse(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        super()._rehearse(name, func.real, args, kwargs)


@pytest.mark.parametrize("name", CONSUMERS)
def test_on_a_gpu_indices_are_tried_on_the_cpu_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fatal_cuda_calls, "ASSERTING_DEVICE", "cpu")
    run, legal, illegal = CONSUMERS[name]
    watch = Gpu()
    with watch:
        run(legal)
    assert watch.needed
    with pytest.raises((RuntimeError, IndexError)), watch:  # DeviceLost is neither
        run(illegal)


def test_what_the_cpu_says_against_legal_arguments_is_no_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fatal_cuda_calls, "ASSERTING_DEVICE", "cpu")
    watch, call = Watch(), Call("embedding")
    call.__class__ = type("Gpu", (Call,), {"__call__": lambda *a, **k: _only_here()})
    watch.learning = True
    with pytest.raises(NotImplementedError):
        watch.__torch_dispatch__(call, (), (X, at(0)))
    assert watch._unlike == {"embedding"}
    watch.learning = False
    watch._rehearse = None  # type: ignore[method-assign,assignment]
    with pytest.raises(NotImplementedError):
        watch.__torch_dispatch__(call, (), (X, at(0)))


def _only_here() -> None:
    raise NotImplementedError("there is no such kernel here")


def test_arithmetic_of_integers_is_not_tried_first() -> None:
    """It costs time, and nothing can happen."""
    for call in (lambda i: i + 1, lambda i: i.view(2, 2), lambda i: i.sum(), torch.argsort):
        with Watch() as watch:
            call(at(3, 1, 2, 0))
        assert not watch.needed


# ---- operators that look nowhere, on the CPU either ---------------------------------------------

PROBABILITIES = torch.randn(7, 3, 5).log_softmax(-1)
TARGETS = torch.randint(1, 5, (3, 4))


def ctc(targets: torch.Tensor, lengths: object = (4, 3, 2), **options: Any) -> torch.Tensor:
    inputs = torch.tensor([7, 7, 7]) if isinstance(lengths, torch.Tensor) else (7, 7, 7)
    with Watch():
        return F.ctc_loss(PROBABILITIES, targets, inputs, lengths, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_targets_of_ctc_loss_are_classes(as_tensors: bool) -> None:
    lengths: Any = torch.tensor([4, 3, 2]) if as_tensors else (4, 3, 2)
    assert torch.isfinite(ctc(TARGETS, lengths))
    beyond = TARGETS.clone()
    beyond[1, 3] = 999  # behind what is read
    assert torch.isfinite(ctc(beyond, lengths))
    for value in (5, -1, 10**6):
        wrong = TARGETS.clone()
        wrong[1, 2] = value
        with pytest.raises(RuntimeError, match=f"{value} .*where there are 5 classes"):
            ctc(wrong, lengths)
    joined = torch.randint(1, 5, (9,))
    assert torch.isfinite(ctc(joined, lengths))
    joined[8] = 5
    with pytest.raises(RuntimeError, match="5 classes"):
        ctc(joined, lengths)


# ---- a process that lost its GPU is replaced, and the case is none -------------------------------

ENDS_CUDA = """
class Model(nn.Module):
    lost = False

    def forward(self, x):
        if type(self).lost or SUCH:
            type(self).lost = True
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return torch.relu(x).cumsum(-1)

def get_inputs():
    return [torch.rand(3, 8)]

def get_init_inputs():
    return []
"""


def test_an_assertion_of_the_device_is_not_an_answer() -> None:
    with pytest.raises(DeviceLost), asked():
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    with pytest.raises(Illegal), asked():  # this one is over with the call
        raise torch.AcceleratorError("CUDA error: invalid configuration argument")
    with pytest.raises(DeviceLost) as told, tried("special-nan-0"):
        raise RuntimeError("CUDA error: device-side assert triggered")
    assert told.value.case == "special-nan-0"
    with pytest.raises(Illegal), tried("special-nan-0", {"special-nan-0"}):
        pytest.fail("it must not be tried again")


def test_what_ended_cuda_is_left_out(tmp_path: Path) -> None:
    problem = ENDS_CUDA.replace("SUCH", "x.isnan().any()")
    one = OneProcess(tmp_path, problem, honest(problem))
    one.lab_order["left_out"] = ["special-nan-0"]
    one.open()
    assert one.lab.accepts("special-nan-0", [torch.full((3, 8), torch.nan)], "eval") is None
    with pytest.raises(DeviceLost) as told:
        one.lab.accepts("special-nan-1", [torch.full((3, 8), torch.nan)], "eval")
    assert told.value.case == "special-nan-1"


def test_another_process_goes_on_without_the_case(tmp_path: Path) -> None:
    problem = HEADER + ENDS_CUDA.replace("SUCH", "x.isnan().any()")
    paths = tmp_path / "problem.py", tmp_path / "candidate.py"
    for path, text in zip(paths, (problem, honest(problem)), strict=True):
        path.write_text(text, encoding="utf-8")
    verdict = judge(*paths, timing=False)
    assert verdict.verdict == "verified", verdict
    refuted = problem.replace("class Model(", "class ModelNew(").replace(
        "cumsum(-1)", "cumsum(-1) * 1.001"
    )
    paths[1].write_text(refuted, encoding="utf-8")
    assert judge(*paths, timing=False).verdict == "refuted"
