"""Calls that come back are launched at once, and nothing in them is ever stale."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.pipeline import emit_only

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = x + torch.relu(norm(conv(x)))
        y = x.mean((2, 3))
        return self.head(y), torch.softmax(y, -1)


batch_size, width, depth = 4, 16, 5


def get_inputs():
    return [torch.randn(batch_size, width, 12, 12)]


def get_init_inputs():
    return [width, depth]
"""
BEFORE = 2  # calls of a kind that are launched one by one
TOLERANCE = {"rtol": 2e-3, "atol": 2e-4}


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("at_once")
    problem, written = folder / "model.py", folder / "written.py"
    problem.write_text(MODEL)
    emit_only(problem, out=written, target="sm_90a")
    module = ModuleType("written_at_once")
    sys.modules[module.__name__] = module
    exec(compile(written.read_text(), str(written), "exec", dont_inherit=True), module.__dict__)
    return module


class Both:
    """An emitted model and the original with the same state, called side by side."""

    def __init__(self, emitted: ModuleType, *, train: bool) -> None:
        torch.manual_seed(0)
        self.kind = emitted.ModelNew
        self.ours = self.kind(16, 5).cuda().train(train)
        self.reset()

    def reset(self) -> None:
        self.twin = copy.deepcopy(self.ours)

    def at_once(self) -> int:
        return int(self.kind.fusewright_status()["at once"])

    def wanted(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.twin.reference_forward(x))

    def right(self, x: Tensor) -> None:
        """One call of both, and their buffers, agree."""
        found, wanted = self.ours(x), self.wanted(x)
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, other, **TOLERANCE)
            assert mine.stride() == other.stride()
        for mine, other in zip(self.ours.buffers(), self.twin.buffers(), strict=True):
            torch.testing.assert_close(mine, other, **TOLERANCE)

    def settled(self, times: int = BEFORE) -> None:
        for _ in range(times):
            self.right(drawn())
        before = self.at_once()
        self.right(drawn())
        assert self.at_once() == before + 1

    def same_state(self) -> None:
        self.twin.load_state_dict(self.ours.state_dict())


def drawn(batch: int = 4) -> Tensor:
    return torch.randn(batch, 16, 12, 12, device="cuda")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=[True, False], ids=["train", "eval"])
def both(request: pytest.FixtureRequest, emitted: ModuleType) -> Both:
    return Both(emitted, train=request.param)


def test_results_are_ones_own(both: Both) -> None:
    both.settled()
    x = drawn()
    first = both.ours(x)
    kept = [one.clone() for one in first]
    both.ours(drawn())
    for mine, was in zip(first, kept, strict=True):
        assert torch.equal(mine, was)
    assert both.kind.fusewright_status()["one by one, because"] == []


def test_new_weights_in_place(both: Both) -> None:
    both.settled()
    for parameter in both.ours.parameters():
        parameter.mul_(0.7)
    both.same_state()
    both.settled(0)
    state = {name: torch.randn_like(t) * 0.1 for name, t in both.ours.named_parameters()}
    both.ours.load_state_dict(state, strict=False)
    both.same_state()
    both.settled(0)


@pytest.mark.parametrize("how", ["assign", "data", "swapped", "set"])
def test_other_tensors(both: Both, how: str) -> None:
    both.settled()
    old = {name: tensor.clone() for name, tensor in both.ours.state_dict().items()}
    new = {n: t * 0.5 if t.is_floating_point() else t.clone() for n, t in old.items()}
    if how == "assign":
        both.ours.load_state_dict(new, assign=True)
    elif how == "data":
        for name, parameter in both.ours.named_parameters():
            parameter.data = new[name]
    elif how == "swapped":
        both.ours.convs[1] = nn.Conv2d(16, 16, 3, padding=1).cuda()
    else:
        both.ours.head.weight.set_(new["head.weight"])
    both.same_state()
    del old
    gc.collect()
    torch.cuda.empty_cache()
    poison = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
    both.settled()
    del poison


def test_modes_in_turn(both: Both) -> None:
    both.settled()
    for k in range(8):
        both.ours.train(k % 2 == 0)
        both.twin.train(k % 2 == 0)
        both.right(drawn())


def test_a_call_like_the_last_one_needs_no_python(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.settled(BEFORE + 1)
    module = sys.modules[both.kind.__module__]
    monkeypatch.setattr(module, "_fusewright_replayed", None)
    monkeypatch.setattr(module, "_fusewright_state", None)
    for _ in range(3):
        both.right(drawn())
    with pytest.raises(TypeError):
        both.ours(drawn(5))


def test_batches_in_turn(both: Both) -> None:
    for batch in (4, 3, 8, 4, 3, 8, 4, 3, 8, 1, 4, 8):
        both.right(drawn(batch))
    assert len(graphs(both.ours)) == 3


def graphs(model: nn.Module) -> list[Any]:
    every = model.__dict__.get("_fusewright_graphs", {}).values()
    return [one for one in every if hasattr(one, "graph")]


def test_no_more_graphs_than_are_kept(both: Both) -> None:
    for batch in range(2, 14):
        for _ in range(BEFORE + 1):
            both.right(drawn(batch))
    assert len(graphs(both.ours)) == 8


def test_streams(both: Both) -> None:
    both.settled()
    for _ in range(2):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(BEFORE + 2):
                torch.cuda._sleep(1_000_000)
                both.right(drawn())
        torch.cuda.current_stream().wait_stream(side)
    both.right(drawn())


def test_two_devices(both: Both) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    both.settled()
    both.ours.to("cuda:1")
    both.twin.to("cuda:1")
    for _ in range(BEFORE + 2):
        both.right(drawn().to("cuda:1"))
    with torch.cuda.device(1):
        for _ in range(BEFORE + 2):
            both.right(torch.randn(4, 16, 12, 12, device="cuda:1"))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(both: Both, how: Callable[[nn.Module], nn.Module]) -> None:
    both.settled()
    other = how(both.ours)
    assert not graphs(other)
    for parameter in other.parameters():
        parameter.add_(1.0)
    both.right(drawn())
    both.ours = other  # type: ignore[assignment]
    both.reset()
    both.settled()


def test_threads_with_an_instance_each(emitted: ModuleType) -> None:
    models = [Both(emitted, train=False) for _ in range(4)]
    errors: list[BaseException] = []

    def work(one: Both, stream: torch.cuda.Stream) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(60):
                    one.right(drawn())
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    streams = [torch.cuda.Stream() for _ in models]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(models, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    torch.cuda.synchronize()


def test_threads_with_one_instance(emitted: ModuleType) -> None:
    one, wrong = Both(emitted, train=False), list[int]()

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                x = torch.full((4, 16, 12, 12), float(number), device="cuda")
                found, wanted = one.ours(x), one.twin.reference_forward(x)
                pairs = zip(found, wanted, strict=True)
                close = all(torch.allclose(a, b, **TOLERANCE) for a, b in pairs)
                wrong.extend([number] * (not close))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_numbers_while_another_thread_records(emitted: ModuleType) -> None:
    stop, errors = threading.Event(), list[BaseException]()

    def draw() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    torch.randn(1000, device="cuda")
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for _ in range(5):
        Both(emitted, train=False).settled()
    stop.set()
    thread.join()
    assert not errors


def test_in_a_graph_of_the_users(both: Both) -> None:
    both.settled()
    x, graph = drawn(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both.ours(x)
    for _ in range(3):
        x.copy_(drawn())
        graph.replay()
        for mine, other in zip(found, both.wanted(x), strict=True):
            torch.testing.assert_close(mine, other, **TOLERANCE)
    both.same_state()
    both.settled(0)


def test_beside_a_graph_of_the_users(both: Both) -> None:
    """Neither has to know of the other: libraries keep workspaces for each stream."""
    lines = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
    x, graph, side = (
        torch.randn(64, 256, device="cuda"),
        torch.cuda.CUDAGraph(),
        torch.cuda.Stream(),
    )
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        lines(x)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        y = lines(x)
    both.settled()
    for _ in range(5):
        x.copy_(torch.randn_like(x))
        graph.replay()
        both.right(drawn())
        torch.testing.assert_close(y, lines(x))


def test_where_others_have_cublas_give_its_memory_back(emitted: ModuleType) -> None:
    """What graphs write to stays theirs, also behind models that are gone."""
    first = Both(emitted, train=False)
    first.settled()
    del first
    gc.collect()
    both = Both(emitted, train=False)
    both.settled()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 22,), 7.0, device="cuda") for _ in range(16)]
    for _ in range(3):
        both.right(drawn())
    assert all(bool((one == 7.0).all()) for one in others)


def test_inference_mode_in_turn(both: Both) -> None:
    for k in range(3 * BEFORE + 3):
        with torch.inference_mode(k % 2 == 0), torch.no_grad():
            x = drawn()
            for mine, other in zip(both.ours(x), both.wanted(x), strict=True):
                torch.testing.assert_close(mine, other, **TOLERANCE)
                assert mine.is_inference() == (k % 2 == 0)


def test_flags_in_turn(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    both.settled()
    for k in range(6):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", k % 2 == 0)
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", k % 3 == 0)
        x = drawn()
        for mine, other in zip(both.ours(x), both.wanted(x), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2)


def test_versions_of_what_is_written(emitted: ModuleType) -> None:
    both = Both(emitted, train=True)
    both.settled()
    buffers = [*both.ours.buffers()]
    before = [one._version for one in buffers]
    both.ours(drawn())
    assert all(one._version > was for one, was in zip(buffers, before, strict=True))


def test_out_of_memory_while_it_records(both: Both) -> None:
    for _ in range(BEFORE):
        both.right(drawn())
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    limit = torch.cuda.memory_reserved() + (1 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        found = both.ours(x := drawn())
    except torch.cuda.OutOfMemoryError:
        found = None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    if found is not None:
        for mine, other in zip(found, both.wanted(x), strict=True):
            torch.testing.assert_close(mine, other, **TOLERANCE)
    both.same_state()
    for _ in range(3):
        both.right(drawn())


def test_steps_that_wait_are_launched_one_by_one(
    emitted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be recorded is said, and leaves nothing behind, not even in random numbers."""
    both = Both(emitted, train=False)
    steps = both.kind.fusewright_steps_in_eval_mode

    def waiting(*given: Any) -> Any:
        torch.cuda.synchronize()
        return steps(*given)

    monkeypatch.setattr(both.kind, "fusewright_steps_in_eval_mode", staticmethod(waiting))
    before = both.at_once()
    for _ in range(BEFORE + 3):
        both.right(drawn())
    assert both.at_once() == before
    assert both.kind.fusewright_status()["one by one, because"]
    monkeypatch.undo()
    emitted._FUSEWRIGHT_ONE_BY_ONE.clear()
    Both(emitted, train=False).settled()


def test_one_by_one_where_the_environment_says_so(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_GRAPHS", "0")
    before = both.at_once()
    for _ in range(5):
        both.right(drawn())
    assert both.at_once() == before


def test_ten_thousand_calls(both: Both) -> None:
    both.settled()
    inputs = [drawn() for _ in range(4)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for x in itertools.islice(itertools.cycle(inputs), 10_000):
        both.ours(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= before + (2 << 20)
    assert len(graphs(both.ours)) <= 4


def test_a_model_leaves_nothing_behind(emitted: ModuleType) -> None:
    seen = []
    for _ in range(6):
        both = Both(emitted, train=False)
        both.settled()
        del both
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        seen.append(torch.cuda.memory_reserved())
    assert seen[-1] <= seen[1] + (4 << 20)
