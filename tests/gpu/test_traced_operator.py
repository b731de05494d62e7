"""PyTorch's compiler sees emitted models for a GPU as one operator that runs their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.support.emitting import Emitted
from tests.support.traced_subjects import MODELS, Subject, same, subjects, written

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]
KERNELS: tuple[int, list[str]] = (1, [])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Emitted]]:
    with written(tmp_path_factory.mktemp("traced"), "sm_90a") as file:
        yield file


@pytest.fixture
def subject(files: Callable[[str], Emitted]) -> Iterator[Callable[[str], Subject]]:
    with subjects(files, "cuda") as made:
        yield made


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("what", MODELS)
def test_compiled(what: str, backend: str, subject: Callable[[str], Subject]) -> None:
    s = subject(what)
    compiled = s.compiled(backend)
    for _ in range(2):
        assert s.right(compiled) == KERNELS


@pytest.mark.parametrize("what", MODELS)
def test_exported(what: str, subject: Callable[[str], Subject]) -> None:
    s = subject(what)
    program = torch.export.export(s.model, tuple(s.inputs))
    operators = [n for n in program.graph.nodes if "fusewright" in str(n.target)]
    tries = "_fusewright_conv_uses_tf32(" in s.emitted_text
    assert len(operators) == (not tries)
    ran, _ = s.right(program.module())
    assert ran == (not tries)


def test_in_a_cuda_graph(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    torch._dynamo.reset()
    compiled = torch.compile(s.model, mode="reduce-overhead", fullgraph=True)
    wanted = s.model.reference_forward(*s.inputs)
    for _ in range(4):
        same(compiled(*s.inputs).clone(), wanted)
    assert s.status()["because"] == {}


def test_flags_of_precision(
    subject: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = subject("perceptron")
    compiled = s.compiled()
    assert s.right(compiled) == KERNELS
    program = torch.export.export(s.model, tuple(s.inputs)).module()
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    same(compiled(*s.inputs), compiled(*s.inputs))
    with pytest.raises(RuntimeError, match="flags of precision"):
        program(*s.inputs)
