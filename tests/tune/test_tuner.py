"""The tuner: what it tries, when it believes a time, and what it remembers."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from fusewright.build.fused_module import NO_TIME, build_all
from fusewright.common.budget import Budget
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import Compilation, design, make
from fusewright.compiler.pipeline import optimize_file
from fusewright.errors import BadUsage, InternalError
from fusewright.judge import judging
from fusewright.judge.isolation.worker_pool import Site
from fusewright.judge.judging import open_site
from fusewright.kernels.gemm.tile import GemmTile, NoSplit, SplitK
from fusewright.kernels.gemm.variants import GEMM_PACKED
from fusewright.kernels.rowwise.strategy import RowPerTeam
from fusewright.kernels.tensor_core.variant import WIDTHS
from fusewright.targets.target import TARGETS
from fusewright.tune.bench import WHOLE, Outputs, distance
from fusewright.tune.cache import TuneCache, TuneResult, cache_key
from fusewright.tune.levels import LEVELS, level_of
from fusewright.tune.paired_timing import AGAIN, FIRST, Times, gain, time_in_pairs
from fusewright.tune.search_space import MODEL, SearchSpace, TuneChoice, choices
from fusewright.tune.tuner import BUILD_SHARE, DEFAULT, cached_or, tune
from tests.support.emitting import compiled_text
from tests.support.folders import ROOT

ROW = RowPerTeam(256, 4, keep=True)
WIDE, NARROW = replace(ROW, threads=512), replace(ROW, threads=128)
FEW = {"batch_size": "8"}
TILED = GemmTile(128, False, packing="packed", reduce=SplitK(8), vector=4)
PROBLEM = """
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(torch.exp(x * 0.1) + x, -1)

    def get_inputs():
        return [torch.randn(256, 1000)]

    def get_init_inputs():
        return []
"""


@dataclass
class Clock:
    """Time that passes only when something takes it."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Fake:
    """A bench on paper. seconds: of a kernel by strategy, of a call by choice.  wrong: those
    whose results are others.  build_s: what the build of a choice takes.  jitter: relative."""

    clock: Clock
    seconds: Callable[[str, RowPerTeam], float]
    defaults: dict[str, RowPerTeam]
    whole: Callable[[TuneChoice | None, float], float] = lambda _, total: total
    wrong: tuple[RowPerTeam, ...] = ()
    build_s: float = 1.0
    jitter: float = 0.002
    guard: bool = True
    built: list[TuneChoice] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def build(self, choices: Sequence[TuneChoice], deadline: float) -> tuple[str, ...]:
        said = []
        for choice in choices:
            late = self.clock.now + self.build_s > deadline
            said.append(NO_TIME if late else "")
            if not late:
                self.clock.now += self.build_s
                self.built.append(choice)
        return tuple(said)

    def outputs(self, choice: TuneChoice | None) -> Outputs:
        self.whole_time(choice)
        used = choice.strategies.values() if choice else ()
        return [torch.ones(4) * (2.0 if any(s in self.wrong for s in used) else 1.0)]

    def kernel_times(self, choice: TuneChoice) -> Times:
        assert choice in self.built
        times = {n: self._noisy(self.seconds(n, s)) for n, s in self._strategies(choice)}
        self.clock.now += sum(times.values())
        return times if self.guard else {}

    def whole_time(self, choice: TuneChoice | None) -> Times:
        assert choice is None or choice in self.built
        total = sum(self.seconds(n, s) for n, s in self._strategies(choice or DEFAULT))
        seconds = self._noisy(self.whole(choice, total))
        self.clock.now += seconds
        return {WHOLE: seconds}

    def _strategies(self, choice: TuneChoice) -> list[tuple[str, RowPerTeam]]:
        return list({**self.defaults, **choice.strategies}.items())

    def _noisy(self, seconds: float) -> float:
        return seconds * math.exp(self.random.gauss(0.0, self.jitter))


def one(others: Sequence[RowPerTeam] = (WIDE, NARROW), library: Sequence[str] = ()) -> SearchSpace:
    return SearchSpace({"softmax": ROW}, {"softmax": list(others)} if others else {}, library)


def bench(seconds: Callable[[str, RowPerTeam], float], **more: object) -> Fake:
    return Fake(Clock(), seconds, {"softmax": ROW}, **more)  # type: ignore[arg-type]


def tuned(fake: Fake, given: SearchSpace | None = None, level: str = "quick") -> TuneResult:
    return tune(fake, given or one(), level, nullcontext, fake.clock)


def by_threads(**factors: float) -> Callable[[str, RowPerTeam], float]:
    """0.01 s, times a factor for the number of threads."""
    return lambda _, strategy: 0.01 * factors.get(f"t{strategy.threads}", 1.0)


def test_the_faster_strategy_is_chosen() -> None:
    found = tuned(bench(by_threads(t512=0.9, t128=0.8)))
    assert found.choice == TuneChoice({"softmax": NARROW})
    assert found.facts["tried"] == found.facts["alternatives"] == 2
    assert any("softmax with threads 128 (not 256): 1.25x" in line for line in found.lines)


@pytest.mark.compiler
@pytest.mark.parametrize(("jitter", "factor"), [(0.002, 0.995), (0.1, 0.96), (0.002, 1.2)])
def test_what_may_be_noise_is_not_believed(jitter: float, factor: float) -> None:
    found = tuned(bench(by_threads(t512=factor, t128=factor), jitter=jitter))
    assert found.choice == DEFAULT
    assert any("none is faster" in line for line in found.lines)


def test_equal_strategies_rarely_win() -> None:
    wrong = 0
    for seed in range(100):
        fake = bench(by_threads(), jitter=0.03)
        fake.random.seed(seed)
        wrong += tuned(fake).choice != DEFAULT
    assert wrong <= 2


@pytest.mark.compiler
def test_kernels_are_chosen_one_by_one() -> None:
    """The first is faster in round 0, the second in round 1: together they are a third build."""
    given = SearchSpace({"a": ROW, "b": ROW}, {"a": [WIDE, NARROW], "b": [WIDE, NARROW]})
    times = {("a", 512): 0.005, ("b", 128): 0.005}
    fake = Fake(Clock(), lambda n, s: times.get((n, s.threads), 0.01), {"a": ROW, "b": ROW})
    found = tuned(fake, given)
    assert found.choice == TuneChoice({"a": WIDE, "b": NARROW})
    assert fake.built[-1] == found.choice
    assert len(fake.built) == 4


@pytest.mark.compiler
def test_the_best_round_is_taken_where_there_is_no_time_for_the_winners() -> None:
    """They are faster together, and a build is longer than what is left."""
    given = SearchSpace({"a": ROW, "b": ROW}, {"a": [WIDE, NARROW], "b": [WIDE, NARROW]})
    times = {("a", 512): 0.02, ("b", 128): 0.01}
    fake = Fake(Clock(), lambda n, s: times.get((n, s.threads), 0.04), {"a": ROW, "b": ROW})
    fake.build_s = LEVELS["quick"].seconds * 0.7 / 3
    found = tuned(fake, given)
    assert len(fake.built) == 3
    assert found.choice == TuneChoice({"a": NARROW, "b": NARROW})


@pytest.mark.compiler
def test_whole_calls_have_the_last_word() -> None:
    fake = bench(by_threads(t512=0.5), whole=lambda c, _: 0.03 if c and c.strategies else 0.02)
    assert tuned(fake).choice == DEFAULT


@pytest.mark.compiler
def test_nothing_is_replaced_where_the_guard_refuses_the_inputs() -> None:
    fake = bench(by_threads(), guard=False)
    assert tuned(fake, replace(one(), model=True)).choice == TuneChoice(library=("model",))
    assert tuned(bench(by_threads(), guard=False), one()).choice == DEFAULT  # it may not be left


@pytest.mark.compiler
def test_a_library_call_that_is_faster_stays() -> None:
    library = TuneChoice(library=("gemm",))
    fake = bench(by_threads(), whole=lambda c, _: 0.015 if c in (library, None) else 0.02)
    found = tuned(fake, one((), ["gemm"]))
    assert found.choice == library
    assert found.lines[1].endswith("the calls that gemm writes stay PyTorch's: 1.33x")
    assert found.facts["eager"]["claim"] == "no difference shown"  # type: ignore[index]


@pytest.mark.compiler
def test_a_model_that_is_slower_stays_as_it_was() -> None:
    """Also where there is nothing else to choose; unless a rule forbids PyTorch's own calls."""

    def slower(choice: TuneChoice | None, _: float) -> float:
        return 0.02 if choice else 0.016

    may = [replace(given, model=True) for given in (one(), one(()))]
    for found in (tuned(bench(by_threads(), whole=slower), given) for given in may):
        assert found.choice == MODEL
        assert found.lines[-1].endswith("PyTorch's own calls are faster here: 1.25x")
        assert found.facts["tried"] == found.facts["alternatives"]
    assert tuned(bench(by_threads(), whole=slower)).choice == DEFAULT


@pytest.mark.compiler
@pytest.mark.parametrize("seconds", [0.0199, 0.03])
def test_a_model_that_is_not_slower_is_replaced(seconds: float) -> None:
    fake = bench(by_threads(), whole=lambda c, _: 0.02 if c else seconds)
    assert tuned(fake, replace(one(()), model=True)).choice == DEFAULT


@pytest.mark.compiler
def test_a_wrong_alternative_is_a_bug() -> None:
    with pytest.raises(InternalError, match="softmax with threads 512"):
        tuned(bench(by_threads(), wrong=(WIDE,)))


@pytest.mark.compiler
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("build_s", [0.1, 3.0, 6.0])
@pytest.mark.parametrize("call_s", [0.01, 0.1, 0.3, 0.4, 0.6, 0.9, 1.5, 3.0, 9.0, 30.0])
def test_the_time_is_kept(level: str, build_s: float, call_s: float) -> None:
    """Whatever a call takes, and though the fastest of each kernel are to be built together."""
    many = [replace(ROW, threads=2**k) for k in range(12) if k != 8]
    kernels = {"a": ROW, "b": ROW}
    faster = {("a", many[0]): 0.8, ("b", many[1]): 0.8}
    fake = Fake(Clock(), lambda *key: call_s / 2 * faster.get(key, 1.0), kernels, build_s=build_s)
    begin = fake.clock.now
    given = SearchSpace(kernels, {"a": many, "b": many[1:] + many[:1]}, ["gemm"], model=True)
    found = tuned(fake, given, level)
    # What cannot be known before is what the first call takes.
    seconds = LEVELS[level].seconds
    assert fake.clock.now - begin <= max(1.1 * seconds, BUILD_SHARE * seconds + 1.01 * call_s)
    tried = found.facts["tried"]
    assert isinstance(tried, int)
    assert tried <= 2 * LEVELS[level].most + 2


@pytest.mark.compiler
@pytest.mark.parametrize("seconds", [1.0, 4.0, 9.0])
def test_less_time_than_the_level_has_is_kept(seconds: float) -> None:
    many = [replace(ROW, threads=2**k) for k in range(12) if k != 8]
    fake = Fake(Clock(), lambda *_: 0.01, {"a": ROW}, build_s=0.5)
    begin, given = fake.clock.now, SearchSpace({"a": ROW}, {"a": many}, ())
    found = tune(fake, given, "full", nullcontext, fake.clock, seconds=seconds)
    assert fake.clock.now - begin <= 1.1 * seconds
    assert found.facts["seconds"] == seconds
    more = tune(fake, given, "quick", nullcontext, fake.clock, seconds=1000.0)
    assert "seconds" not in more.facts, "the level has less"


@pytest.mark.compiler
def test_what_the_compiler_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = bench(by_threads(t512=0.5, t128=0.9))
    build = fake.build

    def refuse(choices: Sequence[TuneChoice], deadline: float) -> tuple[str, ...]:
        wide = [WIDE in c.strategies.values() for c in choices]
        said = iter(build([c for c, no in zip(choices, wide, strict=True) if not no], deadline))
        return tuple("ptxas: too much" if no else next(said) for no in wide)

    monkeypatch.setattr(fake, "build", refuse)
    found = tuned(fake)
    assert found.choice == TuneChoice({"softmax": NARROW})
    assert found.facts["refused"] == ["ptxas: too much"]
    assert found.lines[-1] == "  tuned: builds that the compiler refused: 1"


@pytest.mark.compiler
def test_nothing_to_choose_builds_nothing() -> None:
    fake = bench(by_threads())
    assert tuned(fake, one(())).facts["why"] == "there is nothing to choose"
    assert not fake.built


@pytest.mark.compiler
@pytest.mark.parametrize("how", [{"build_s": 1000.0}, {"guard": False}])
def test_what_cannot_be_timed_is_said(how: dict[str, object]) -> None:
    found = tuned(bench(by_threads(t512=0.5), **how))
    assert found.choice == DEFAULT
    assert found.facts["why"]


@pytest.mark.slow
def test_turns_are_paired() -> None:
    """A machine that becomes slower all the time does not make the side that comes last slower."""
    clock = Clock()

    def side(factor: float) -> Callable[[], Times]:
        def run() -> Times:
            seconds = factor * clock.now / 1e5
            clock.now += seconds
            return {WHOLE: seconds}

        return run

    samples = time_in_pairs({FIRST: side(1.0), AGAIN: side(1.0), "x": side(0.5)}, 10.0, clock)
    found = gain(samples, "x", WHOLE)
    assert found.faster
    assert abs(found.times - 2.0) < 0.05


# ---- memory --------------------------------------------------------------------------------------


FOUND = TuneResult(
    TuneChoice({"softmax": TILED}, ("target-lowering",)), ("  tuned: quick",), {"tried": 2}
)


@pytest.mark.slow
def test_memory_keeps_a_choice(tmp_path: Path) -> None:
    memory = TuneCache(tmp_path / "new" / "tuned.sqlite")
    assert memory.get("k") is None
    memory.put("k", FOUND)
    assert memory.get("k") == FOUND
    assert memory.get("other") is None


@pytest.mark.compiler
def test_what_full_has_found_serves_quick(tmp_path: Path) -> None:
    memory, worked = TuneCache(tmp_path / "tuned.sqlite"), []

    def work() -> TuneResult:
        worked.append(1)
        return replace(FOUND, facts={"run": len(worked), "tried": 1})

    runs = [cached_or(memory, level, ["a"], work).facts["run"] for level in
            ("quick", "quick", "full", "full", "quick")]  # fmt: skip
    assert runs == [1, 1, 2, 2, 2]
    assert cached_or(memory, "quick", ["b"], work).facts["run"] == 3


@pytest.mark.slow
def test_what_was_not_tried_is_not_remembered(tmp_path: Path) -> None:
    memory = TuneCache(tmp_path / "tuned.sqlite")
    cached_or(memory, "quick", ["a"], lambda: replace(FOUND, facts={"tried": 0}))
    assert memory.get(cache_key(["quick", "a"])) is None
    hurried = replace(FOUND, facts={"tried": 3, "seconds": 2.0})
    assert cached_or(memory, "quick", ["a"], lambda: hurried) == hurried
    assert memory.get(cache_key(["quick", "a"])) is None, "with more time it may be another"


@pytest.mark.slow
def test_a_damaged_store_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tuned.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.warns(UserWarning, match="cannot be read") as said:
        assert TuneCache(path).get("k") is None
    assert str(path) in str(said[0].message)
    with pytest.warns(UserWarning, match="cannot be written"):
        TuneCache(path).put("k", FOUND)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["{", "[]", "{}", '{"choice": {"strategies": {"a": {"x": 1}}}}'])
def test_a_damaged_row_is_a_warning(row: str, tmp_path: Path) -> None:
    memory = TuneCache(tmp_path / "tuned.sqlite")
    memory.put("k", FOUND)
    with sqlite3.connect(memory.path) as connection:
        connection.execute("UPDATE tuned SET found = ?", (row,))
    with pytest.warns(UserWarning, match="cannot be read"):
        assert memory.get("k") is None


@pytest.mark.parametrize(
    "change",
    [
        {"type": "RowPerMoon"},
        {"family": "moons"},
        {"family": "conv"},
        {"fields": {"threads": 4}},
        # as it was once kept: of all families with tiles, with fields of all of them
        {"type": "TensorCoreTile", "fields": {"tile": {"width": 128, "parts": 8}, "vector": 4}},
    ],
)
def test_a_strategy_that_there_is_no_more_is_not_found(
    change: dict[str, object], tmp_path: Path
) -> None:
    memory = TuneCache(tmp_path / "tuned.sqlite")
    memory.put("k", FOUND)
    with sqlite3.connect(memory.path) as connection:
        (text,) = connection.execute("SELECT found FROM tuned").fetchone()
        row = json.loads(text)
        row["choice"]["strategies"]["softmax"].update(change)
        connection.execute("UPDATE tuned SET found = ?", (json.dumps(row),))
    assert memory.get("k") is None


@pytest.mark.slow
def test_a_place_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="cannot be written"):
        TuneCache(tmp_path / "file" / "tuned.sqlite").put("k", FOUND)


@pytest.mark.slow
def test_many_writers(tmp_path: Path) -> None:
    text = """
        import sys
        from pathlib import Path
        from fusewright.tune.cache import TuneCache, TuneResult
        from fusewright.tune.search_space import TuneChoice
        for k in range(40):
            found = TuneResult(TuneChoice(), (), {"tried": k})
            TuneCache(Path(sys.argv[1])).put(f"{sys.argv[2]} {k}", found)
    """
    path = tmp_path / "tuned.sqlite"
    words = [sys.executable, "-W", "error", "-c", textwrap.dedent(text), str(path)]
    writers = [subprocess.Popen([*words, str(n)], cwd=ROOT) for n in range(2)]
    assert [w.wait(timeout=120) for w in writers] == [0] * 2
    found = [TuneCache(path).get(f"{n} {k}") for n in range(2) for k in range(40)]
    assert [f.facts["tried"] for f in found if f] == [*range(40)] * 2


# ---- what there is to choose ---------------------------------------------------------------------


def made(name: str, target: str) -> Compilation:
    folder = "examples" if (ROOT / "examples" / f"{name}.py").exists() else "tests/corpus/models"
    problem = load_problem(ROOT / folder / f"{name}.py", FEW if folder == "examples" else {})
    torch.manual_seed(0)
    return make(problem.make_model(), problem.make_inputs(), TARGETS[target])


def choices_of(given: Compilation, rules: frozenset[str] = frozenset()) -> SearchSpace:
    machine = given.plan.target
    return choices(
        given.kernels, given.shared, given.plan, rules,
        lambda choice: design(given.given, machine, rules=rules, choice=choice).plan,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm_gelu", "folds_across", "linear_tail", "halves"])
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_defaults_are_not_among_their_alternatives(name: str, target: str) -> None:
    given = made(name, target)
    found = choices_of(given)
    assert found.defaults == {body.name: strategy for body, _, strategy in given.kernels}
    for kernel, others in found.others.items():
        assert found.defaults[kernel] not in others
        assert len(set(others)) == len(others)
        shapes = [(getattr(s, "threads", 1), getattr(s, "columns", 1)) for s in others]
        assert all(1 <= threads * columns <= 1024 for threads, columns in shapes)
    if target == "cpu":
        assert all(len(others) <= 2 for others in found.others.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "rules", "stages"),
    [
        ("gemm_add_relu", "sm_80", (), ["gemm"]),
        ("gemm_add_relu", "sm_90a", ("no-library",), []),
        ("gemm_add_relu", "cpu", (), []),
        ("conv_relu_bias", "sm_90a", (), ["conv"]),
        ("pools", "sm_90a", (), ["target-lowering"]),
    ],
)
def test_stages_that_write_calls_may_be_left_out(
    name: str, target: str, rules: Sequence[str], stages: Sequence[str]
) -> None:
    assert choices_of(made(name, target), frozenset(rules)).library == stages


@pytest.mark.slow
def test_tiles_of_a_product() -> None:
    """Both sides and every width, and the depth in one piece where it is shared."""
    given = made("gemm_add_relu", "sm_90a")
    default = choices_of(given).defaults["gemm_add_relu"]
    assert isinstance(default, GemmTile)
    tiles = choices_of(given).others["gemm_add_relu"]
    assert tiles[0] == replace(default, reduce=NoSplit())
    shapes = {(t.width, t.swap_operands) for t in tiles if isinstance(t, GemmTile)}
    widths = {side: (*WIDTHS, *GEMM_PACKED.between[side]) for side in (False, True)}
    assert shapes == {(width, side) for side, some in widths.items() for width in some}


# ---- real runs on the CPU ------------------------------------------------------------------------


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return place(tmp_path, monkeypatch)


def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "built"))
    path = folder / "softmax.py"
    path.write_text(textwrap.dedent(PROBLEM).lstrip("\n"), encoding="utf-8")
    return path


Written = tuple[str, str, dict[str, object]]


def optimized(problem: Path, level: str, name: str) -> Written:
    out = problem.parent / name
    outcome = optimize_file(problem, out=out, target="cpu", level=level, timing=False)
    assert outcome.verdict is not None
    assert outcome.verdict.verdict == "verified"
    return out.read_text(encoding="utf-8"), outcome.decisions, dict(outcome.tuning or {})


@pytest.fixture(scope="module")
def one_site() -> Iterator[None]:
    """All files for the CPU are judged where PyTorch was imported once."""
    with open_site("cpu", timing=False) as site, pytest.MonkeyPatch.context() as patch:

        def opened(device: str, *, timing: bool) -> AbstractContextManager[Site]:
            return nullcontext(site) if device == "cpu" else open_site(device, timing=timing)

        patch.setattr(judging, "open_site", opened)
        yield


@pytest.fixture(scope="module")
def runs(one_site: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written, Written]:
    """What is built where a file is tuned; that file; and one that is not."""
    with pytest.MonkeyPatch.context() as patch:
        tuned = place(tmp_path_factory.mktemp("tuned"), patch)
        quick = optimized(tuned, "quick", "first.py")
        plain = place(tmp_path_factory.mktemp("plain"), patch)
        off = optimized(plain, "off", "first.py")
    assert not (plain.parent / "built" / "fusewright_tuned.sqlite").exists()
    return tuned.parent / "built", quick, off


@pytest.fixture
def remembering(problem: Path, runs: tuple[Path, Written, Written]) -> Path:
    """The problem, where it was tuned before."""
    shutil.copytree(runs[0], problem.parent / "built")
    return problem


@pytest.mark.compiler
def test_tuned_on_this_machine(
    remembering: Path, runs: tuple[Path, Written, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run builds nothing, times nothing and writes the same file."""
    first, decisions, facts = runs[1]
    assert facts["tried"] == facts["alternatives"]
    assert facts["tried"] in (2, 3)
    assert "  tuned: quick" in decisions
    assert "#   tuned: quick" in first
    monkeypatch.setattr("fusewright.compiler.pipeline.TuneBench", None)
    assert optimized(remembering, "quick", "second.py") == runs[1]


@pytest.mark.compiler
def test_off_is_as_before(runs: tuple[Path, Written, Written]) -> None:
    text, decisions, facts = runs[2]
    assert "tuned" not in text + decisions
    assert not facts


@pytest.mark.compiler
def test_a_choice_reaches_the_file(remembering: Path, runs: tuple[Path, Written, Written]) -> None:
    """What the store holds decides, and the emitted file is right with it."""
    store = remembering.parent / "built" / "fusewright_tuned.sqlite"
    loaded = load_problem(remembering)
    given = make(loaded.make_model(), loaded.make_inputs(), TARGETS["cpu"])
    (others,) = choices_of(given).others.values()
    (kernel,) = given.kernels
    chosen = TuneResult(
        TuneChoice({kernel[0].name: others[0]}), ("  tuned: by hand",), {"tried": 1}
    )
    with sqlite3.connect(store) as connection:
        ((key,),) = connection.execute("SELECT key FROM tuned").fetchall()
    TuneCache(store).put(key, chosen)
    text, _, facts = optimized(remembering, "quick", "second.py")
    assert facts == {"tried": 1}
    assert "tuned: by hand" in text
    assert _kernels(text) != _kernels(runs[2][0])


@pytest.mark.judged
@pytest.mark.usefixtures("one_site")
def test_a_file_in_which_nothing_is_replaced(
    problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = TuneResult(MODEL, ("  tuned: by hand",), {"tried": 1})
    monkeypatch.setattr("fusewright.compiler.pipeline.tune", lambda *_, **__: kept)
    text, decisions, _ = optimized(problem, "quick", "kept.py")
    assert decisions == "softmax.py on cpu: the model as it was\n\n  tuned: by hand\n"
    own = problem.read_text(encoding="utf-8").replace("class Model(", "class ModelNew(")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert text == "\n".join([*comments, own])
    assert "by hand" in comments[2]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["no-library", "no-workspace"])
def test_rules_forbid_the_model_as_it_was(rule: str, problem: Path) -> None:
    loaded = load_problem(problem)
    given = make(loaded.make_model(), loaded.make_inputs(), TARGETS["cpu"])
    found = [
        choices(given.kernels, given.shared, given.plan, rules, lambda _: given.plan)
        for rules in (frozenset[str](), frozenset([rule]))
    ]
    assert [f.model for f in found] == [True, False]


def _kernels(text: str) -> str:
    return compiled_text(text)


@pytest.mark.judged
def test_other_machines_are_not_tuned_for(problem: Path) -> None:
    with pytest.raises(BadUsage, match="--tune quick: sm_80 is not on this machine"):
        optimize_file(problem, target="sm_80", level="quick")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "here", "timing", "level"),
    [
        (None, True, True, "quick"), (None, True, False, "off"), (None, False, True, "off"),
        ("off", True, True, "off"), ("full", True, False, "full"),
    ],
)  # fmt: skip
def test_what_is_timed_is_tuned(asked: str | None, here: bool, timing: bool, level: str) -> None:
    assert level_of(asked, TARGETS["cpu"], here=here, timing=timing) == level


@pytest.mark.parametrize(("seconds", "level"), [(5.0, "off"), (30.0, "quick"), (900.0, "full")])
def test_a_budget_says_how_much_is_tried(seconds: float, level: str) -> None:
    """Where nothing else is asked for, and only where anything would be tried."""
    budget = Budget(seconds, 0.0)
    asked = partial(level_of, machine=TARGETS["cpu"], budget=budget)
    assert asked(None, here=True, timing=True) == level
    assert asked(None, here=True, timing=False) == "off"
    assert asked(None, here=False, timing=True) == "off"
    assert asked("full", here=True, timing=True) == "full"


# ---- builds and comparisons ----------------------------------------------------------------------


@pytest.mark.slow
def test_builds_end_with_their_time(tmp_path: Path) -> None:
    marks = [tmp_path / str(k) for k in range(3)]
    texts = [
        f"def _fusewright_library(): open({str(marks[0])!r}, 'w')",
        "def _fusewright_library(): raise RuntimeError('no such instruction')",
        f"import time\ndef _fusewright_library(): time.sleep(60); open({str(marks[2])!r}, 'w')",
    ]
    begin = time.monotonic()
    said = build_all(texts, begin + 15.0)
    assert said[0] == ""
    assert marks[0].exists()
    assert "no such instruction" in said[1]
    assert "no time" in said[2]
    assert not marks[2].exists()
    assert time.monotonic() - begin < 40
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [c for c in children if "kernels_" in Path(f"/proc/{c}/cmdline").read_text()]


NAN, INF = math.nan, math.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([3.0, 4.0], [3.0, 4.5], 0.5 / math.hypot(3.0, 4.5)),
        ([0.0], [0.0], 0.0),
        ([1, 2], [1, 2], 0.0),
        ([1j], [2j], 0.5),
    ],
)
def test_distance(ours: list[complex], theirs: list[complex], expected: float) -> None:
    assert distance([torch.tensor(ours)], [torch.tensor(theirs)]) == pytest.approx(expected)


@pytest.mark.slow
def test_distance_of_other_shapes() -> None:
    assert distance([torch.zeros(2)], [torch.zeros(3)]) == INF
    assert distance([torch.zeros(2)], []) == INF


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.compiler
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "others"), [("layer_norm_gelu", 1), ("conv_relu_bias", 1)])
def test_tuned_on_a_gpu(
    name: str, others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    folder = "examples" if (ROOT / "examples" / f"{name}.py").exists() else "tests/corpus/models"
    runs = [
        optimize_file(
            ROOT / folder / f"{name}.py", out=tmp_path / f"{k}.py", target="cuda", level="quick",
            timing=False,
        )
        for k in range(2)
    ]  # fmt: skip
    assert all(r.verdict is not None and r.verdict.verdict == "verified" for r in runs)
    tuning = dict(runs[0].tuning or {})
    assert isinstance(tuning["tried"], int)
    assert tuning["tried"] >= others
    assert runs[1].tuning == tuning
    assert (tmp_path / "0.py").read_text() == (tmp_path / "1.py").read_text()
