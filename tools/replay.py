"""Problems x targets -> every generated text, recorded before a refactoring and compared after it.

`record FOLDER` captures, plans and prints each problem of a corpus for each target, and keeps the
emitted file, the decision record and the kernels of every alternative that a tuner could choose.
`compare FOLDER` does the same again and says what is no longer the same, byte for byte; with
`--renamed`, what is not the old text but for names (`tools/renaming.py`). `sections` says which
sections of the hand-written skeletons no text of the corpus contains. Nothing is compiled or run,
no GPU is asked, and what a problem raises is kept as its text.

Of a model that is taken in parts, the alternatives of its parts are not kept.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same texts with and without a GPU

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import fusewright.codegen.cuda_source
from fusewright.build.fused_module import scope_of
from fusewright.codegen.cpu_source import cpp_source
from fusewright.codegen.device_library import sections
from fusewright.codegen.kernel_text import KernelText
from fusewright.common.atomic_write import write_atomically
from fusewright.common.problem_file import NO_OVERRIDES, Problem, load_problem
from fusewright.compiler import pipeline
from fusewright.compiler.compilation import NO_RULES, Compilation, design, make
from fusewright.emit.emitted_file import emit_bare_class
from fusewright.errors import BadUsage, CaptureFailed
from fusewright.frontend.capture import Captured, capture
from fusewright.frontend.example_arguments import Example, example
from fusewright.fusion.planner import Plan
from fusewright.kernels.registry import kernel_text
from fusewright.targets.target import TARGETS, Target
from fusewright.tune.search_space import TuneChoice, choices

cuda: Any = fusewright.codegen.cuda_source  # functions of these two are replaced below
compiler: Any = pipeline
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("zoo", "examples", "tests/corpus/models", "tests/corpus/problems", "tests/replay")
BENCH = "bench/models"  # a module of models, without problem files
MANIFEST, TEXTS = "manifest.json", "texts.json"
PARAGRAPH = "\n\n"  # texts have most of their paragraphs in common, so each is kept once
DIFF_LINES = 40
LARGE = 64 << 20  # bytes from which tensors are not drawn: planning reads none of them

# Targets that have all kernels of their kind; others have some of the second one's.
RECORDED = tuple(TARGETS[name] for name in ("cpu", "sm_80", "sm_90a"))

# Problem -> why it is no part of the corpus.
LEFT_OUT: Mapping[str, str] = MappingProxyType({})

# Problem -> constants of its file that are others here, as `--set` has them.
SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"tests/corpus/problems/recurrent": {"steps": "10"}}  # 200 kernels, of which all are alike
)

# Name -> precision and rules, as `optimize` takes them.
VARIANTS: Mapping[str, tuple[str, frozenset[str]]] = MappingProxyType(
    {
        "ieee": ("ieee", frozenset()),
        "no-prepack": ("eager", frozenset({"no-prepack"})),
        "no-library": ("eager", frozenset({"no-library"})),
        "no-workspace": ("eager", frozenset({"no-workspace"})),
        "no-algebra": ("eager", frozenset({"no-algebra"})),
    }
)
# Problems that are recorded with every variant, too.
VARIED = (
    "examples/*",
    "tests/corpus/models/conv2d_groupnorm",
    "tests/corpus/models/linear_tail",
    "tests/corpus/models/softmax_family",
    "tests/replay/conv_float32",
    "tests/replay/product_rows",
    "tests/replay/scan_long_rows",
    "zoo/conv2d_scale_min",
    "zoo/half_bfloat16_linear",
    "zoo/linear_gelu_softmax",
    "zoo/map_polynomial",
    "zoo/matmul_triangular",
    "zoo/network_transformer_block",
    "zoo/scan_gated_sequence",
    "zoo/transposed2d_bias_tanh",
)

# Why no problem can reach a section of some languages.
_UNSPELT = {
    "neg": "The operator is spelt with a minus sign, so no text calls the function.",
    "index": "No generated text has an operand of this kind.",
    **dict.fromkeys(
        ("fmax", "fmin", "hypot", "copysign"),
        "No operator of ir/operators.py is spelt so: these stay PyTorch's calls.",
    ),
}
_UNSPELT_ON_GPUS = {**_UNSPELT, "silu": "Only `once` writes this operator, and only for the CPU."}
# Language -> section -> why no problem can reach it.
REASONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cpp": {
            **_UNSPELT,
            "masked_fma": "Depthwise convolutions are maps on GPUs only, and calls on the CPU.",
        },
        "sm80": {
            **_UNSPELT_ON_GPUS,
            "register_epilogue": "Its one constant lets other sections compile; tiles of Ampere "
            "ask for it nowhere, so that it is pruned from every text.",
        },
        "sm90": {
            **_UNSPELT_ON_GPUS,
            "mma_of": "Only convolutions of Ampere multiply so; the file serves both.",
        },
    }
)
# Language -> sections that a problem could reach, and none does so far.
NOT_YET: Mapping[str, Sequence[str]] = MappingProxyType({})

Texts = dict[str, Sequence[str]]  # key -> the paragraphs of its text
Named = list[tuple[str, str]]  # keys and their texts


# ---- the corpus ----------------------------------------------------------------------------------


def corpus(only: Sequence[str] = ()) -> list[str]:
    """The names of all problems, or of those that one of the patterns fits."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    names = [path.relative_to(ROOT).with_suffix("").as_posix() for path in paths]
    names += [f"{BENCH}/{name}" for name in _bench() if f"examples/{name}" not in names]
    return [n for n in names if n not in LEFT_OUT and (not only or _fits(n, only))]


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@cache
def _bench() -> Mapping[str, Callable[[], tuple[nn.Module, Callable[[], list[Tensor]]]]]:
    """The entries of bench/models.py, at the sizes that a GPU takes."""
    found: Any = _at(f"{BENCH}.py").entries("gpu")
    return found  # type: ignore[no-any-return]


def _at(path: str) -> Any:
    """The module in a file of the repository that is no package."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    if spec is None or spec.loader is None:
        raise BadUsage(f"{path}: cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Undrawn(TorchFunctionMode):
    """Within the block, large tensors get no random numbers: drawing them takes long, and planning
    reads none of them. Their memory is fresh, so that all of it is zero."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", ""))
        if func in (torch.rand, torch.randn) and not {"device", "out"} & kwargs.keys():
            like = func(*args, **kwargs, device="meta")
            if like.numel() * like.element_size() >= LARGE:
                return torch.empty(like.shape, dtype=like.dtype)
        if name.endswith(("uniform_", "normal_")):
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.numel() * tensor.element_size() >= LARGE:
                return tensor
        return func(*args, **kwargs)


# ---- problem -> texts ----------------------------------------------------------------------------


def texts_of(name: str) -> Texts:
    """All texts of a problem: key -> paragraphs; called once in a process."""
    found = dict[str, str]()
    for variant in ("", *(VARIANTS if _fits(name, VARIED) else ())):
        precision, rules = VARIANTS.get(variant, ("eager", NO_RULES))
        for machine in RECORDED:
            prefix = "/".join([name, machine.name, *[variant] * bool(variant)])
            try:
                texts, made = _emitted(_loaded(name), machine, precision, rules)
                for planned in [] if variant else made:
                    texts += _alternatives(planned)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is replayed
                texts = [("error", _without_root(f"{type(error).__name__}: {error}"))]
            found |= {f"{prefix}/{key}": text for key, text in texts}
    same = dict[str, str]()  # so that equal paragraphs are one
    return {k: [same.setdefault(p, p) for p in t.split(PARAGRAPH)] for k, t in found.items()}


@dataclass(frozen=True)
class _Loaded:
    """problem: None where there is no problem file."""

    name: str
    problem: Problem | None
    module: nn.Module
    given: Example


@cache
def _loaded(name: str) -> _Loaded:
    torch.manual_seed(0)
    if name.startswith(f"{BENCH}/"):
        with _Undrawn():
            module, make_inputs = _bench()[name.removeprefix(f"{BENCH}/")]()
            found = _Loaded(name, None, module, Example(make_inputs(), drawn=False))
    else:
        problem = load_problem(Path(f"{name}.py"), SETTINGS.get(name, NO_OVERRIDES))
        with _Undrawn():
            module = problem.make_model()
        found = _Loaded(name, problem, module, example(problem))
    _capturing_once(found.module)
    return found


def _capturing_once(model: nn.Module) -> None:
    """From now on, in this process, a model is captured once for each kind of device."""

    def once(module: nn.Module, given: Sequence[object], device: str = "cpu") -> Captured:
        # A part of the model may be called with other inputs each time.
        found = known.get(device) if module is model else None
        found = found or _captured(module, given, device)
        if module is model:
            known[device] = found
        if isinstance(found, str):
            raise CaptureFailed(found)
        return found

    known = dict[str, Captured | str]()
    compiler.capture = once


def _captured(module: nn.Module, given: Sequence[object], device: str) -> Captured | str:
    """What `capture` says, or why it fails; no word of that says where the clone lies."""
    try:
        return capture(module, given, device)
    except CaptureFailed as error:
        return _without_root(str(error))


def _without_root(text: str) -> str:
    return text.replace(f"{ROOT}/", "")


def _emitted(
    loaded: _Loaded, machine: Target, precision: str, rules: frozenset[str]
) -> tuple[Named, list[Compilation]]:
    """The emitted file and the decision record, and what was made of the model as a whole."""
    whole = list[Compilation]()

    def untuned(made: Compilation, _: object) -> Compilation:
        whole.append(made)
        return made

    if loaded.problem is None:
        made = make(loaded.module, loaded.given.inputs, machine, precision, rules)
        runtime, forward = pipeline._code(made, loaded.module, scope_of(loaded.module))
        texts = [("file", emit_bare_class(runtime, forward)), ("record", made.record(loaded.name))]
        return texts, [made]
    about = loaded.problem, loaded.module, loaded.given, machine, precision, rules
    file = pipeline._file(*about, untuned, lambda _: None)
    return [("file", file.text), ("record", file.record)], whole


def _alternatives(made: Compilation) -> Named:
    """The kernels of each other strategy, and those of plans with more of PyTorch's calls."""
    if not made.replaced:
        return []
    machine, plans, rules = made.plan.target, dict[str, Compilation](), NO_RULES

    def replanned(choice: TuneChoice) -> Plan:
        (stage,) = choice.library
        plans[stage] = design(made.given, machine, made.plan.precision, rules, choice)
        return plans[stage].plan

    found = choices(made.kernels, made.shared, made.plan, rules, replanned)
    users = {made.shared.function_of[k[0].name]: k for k in reversed(made.kernels)}
    texts: Named = []
    for name, strategies in found.others.items():
        for k, strategy in enumerate(strategies):
            text, nest, _ = users[name]
            printed = kernel_text(nest, strategy, text.in_place, made.names)
            texts.append((f"{name}/{k}", _kernels([printed], machine)))
    for stage in found.library:
        other = plans[stage]
        texts.append((f"without-{stage}/record", other.record(stage)))
        texts.append((f"without-{stage}/kernels", _kernels(other.texts, machine)))
    return texts


def _kernels(kernels: Sequence[KernelText], machine: Target) -> str:
    if machine.language == "cuda":
        return str(cuda.cuda_source(kernels, machine))
    return cpp_source(kernels)


# ---- a process for each problem ------------------------------------------------------------------


def generated(names: Sequence[str], jobs: int) -> Iterator[tuple[str, Texts]]:
    """The texts of each problem, as they come, with progress on stderr.

    Each has a process of its own, so that none depends on those before it. They are forked from one
    that has exported a model, and that has no threads.
    """
    torch.set_num_threads(1)
    _at("tests/support/composites.py").keep()
    capture(nn.ReLU(), [torch.zeros(2, 2)])
    cuda.drop_unreached = cache(cuda.drop_unreached)  # what a tuner could choose is printed twice
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(names)), dict[Connection, tuple[str, Any, float]]()
    done = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_answer, args=(name, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = name, process, time.monotonic()
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            name, process, begin = running.pop(ready)
            try:
                texts: Texts = ready.recv()
            except EOFError:
                process.join()
                texts = {f"{name}/error": [f"The process ended with {process.exitcode}."]}
            process.join()
            ready.close()
            done += 1
            took = time.monotonic() - begin
            print(f"{done}/{len(names)} {name}: {len(texts)} texts, {took:.1f} s", file=sys.stderr)
            yield name, texts


def _answer(name: str, to: Connection) -> None:
    warnings.simplefilter("ignore")
    to.send(texts_of(name))
    to.close()


# ---- a record ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """keys: key -> the hash of its text.  texts: hash -> numbers of its paragraphs."""

    keys: dict[str, str] = field(default_factory=dict)
    texts: dict[str, list[int]] = field(default_factory=dict)
    paragraphs: dict[str, int] = field(default_factory=dict)

    def add(self, texts: Texts) -> None:
        for key, parts in texts.items():
            name = hashlib.sha256(PARAGRAPH.join(parts).encode()).hexdigest()
            self.keys[key] = name
            if name not in self.texts:
                numbers = self.paragraphs
                self.texts[name] = [numbers.setdefault(p, len(numbers)) for p in parts]

    def text(self, name: str) -> str:
        """The text that has this hash."""
        every = list(self.paragraphs)
        return PARAGRAPH.join(every[k] for k in self.texts[name])


def made_record(names: Sequence[str], jobs: int) -> Record:
    """A record that does not depend on which problem was ready first."""
    found = dict(generated(names, jobs))
    record = Record()
    for name in names:
        record.add(found.pop(name))
    return record


def write(record: Record, folder: Path) -> None:
    """The texts first: a manifest that is there is a whole record."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"paragraphs": list(record.paragraphs), "texts": record.texts}
    write_atomically(folder / TEXTS, f"{json.dumps(texts)}\n", force=True)
    manifest = json.dumps(record.keys, indent=0, sort_keys=True)
    write_atomically(folder / MANIFEST, f"{manifest}\n", force=True)


def read(folder: Path) -> Record:
    """The record in a folder; raises BadUsage where there is none."""
    try:
        keys = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadUsage(f"{folder}: there is no record here: {error}.") from error
    if lost := set(keys.values()) - texts["texts"].keys():
        raise BadUsage(f"{folder}: the record lacks {len(lost)} of its texts; record again.")
    paragraphs = {p: k for k, p in enumerate(texts["paragraphs"])}
    return Record(keys, texts["texts"], paragraphs)


def differences(old: Record, new: Record) -> Iterator[str]:
    """What is not the same in two records, each with the begin of its difference."""
    shown = dict[tuple[str, str], str]()
    for key in sorted(old.keys.keys() | new.keys.keys()):
        before, after = old.keys.get(key), new.keys.get(key)
        if before is None or after is None:
            yield f"{key}: {'is new' if before is None else 'is missing'}"
        elif before != after and (first := shown.setdefault((before, after), key)) != key:
            yield f"{key}: differs as {first} does"
        elif before != after:
            sides = old.text(before).splitlines(), new.text(after).splitlines()
            lines = list(difflib.unified_diff(*sides, "recorded", "now", lineterm="", n=1))
            more = [f"... {len(lines) - DIFF_LINES} more lines"] * (len(lines) > DIFF_LINES)
            yield "\n".join([f"{key}: differs", *lines[:DIFF_LINES], *more])


# ---- texts that differ in names alone ------------------------------------------------------------


def language(key: str) -> str:
    """What the text of a key is written in."""
    kind = key.rsplit("/", 1)[-1]
    return {"file": "python", "record": "prose", "error": "prose"}.get(kind, "c++")


def renamed(old: Record, new: Record) -> Iterator[tuple[str, Any]]:
    """Key -> the `Renaming` of its text, or, as text, what else is no longer the same.

    A text whose key is another one now is found by its shape. Equal texts come once."""
    module = _at("tools/renaming.py")
    pairs = {key: key for key in old.keys.keys() & new.keys.keys()}
    pairs |= _found_again(old, new, module.shape)
    known = set[tuple[str, str]]()
    for key in sorted(old.keys):
        if key not in pairs:
            yield key, "is missing"
            continue
        texts = old.keys[key], new.keys[pairs[key]]
        if texts[0] == texts[1] or texts in known:
            continue
        known.add(texts)
        try:
            yield key, module.renaming(old.text(texts[0]), new.text(texts[1]), language(key))
        except module.NotRenamed as error:
            yield key, str(error)
    yield from ((key, "is new") for key in sorted(new.keys.keys() - set(pairs.values())))


def _found_again(
    old: Record, new: Record, shape: Callable[[str, str], str]
) -> Iterator[tuple[str, str]]:
    """Keys that are no more, and those of the same problem and target that have their shapes."""
    places = defaultdict[tuple[str, ...], list[str]](list)
    for key in sorted(new.keys.keys() - old.keys.keys()):
        places[_problem(key), language(key), shape(new.text(new.keys[key]), language(key))] += [key]
    for key in sorted(old.keys.keys() - new.keys.keys()):
        text = shape(old.text(old.keys[key]), language(key))
        if found := places[_problem(key), language(key), text]:
            yield key, found.pop(0)


# ---- sections of the skeletons -------------------------------------------------------------------


def languages() -> dict[str, list[str]]:
    """The language of the skeletons -> the targets that speak it."""
    found = dict[str, list[str]]()
    for machine in RECORDED:
        found.setdefault(str(machine.arch.device_library), []).append(machine.name)
    return found


def marks(language: str) -> dict[str, str]:
    """Lines at the left margin by which a text shows that it has a section -> that section."""
    owners, lines = dict[str, str](), dict[str, set[str]]()
    for section in sections(language):
        lines[section.name] = set(section.text.splitlines())
        for line in lines[section.name]:
            owners[line] = "" if line in owners else section.name
    found = {line: name for line, name in owners.items() if name and _is_head(line)}
    missing = lines.keys() - set(found.values())
    return found | {line: name for line, name in owners.items() if name in missing}


def _is_head(line: str) -> bool:
    return len(line) > 8 and not line.startswith((" ", "//", "}"))


def reached(record: Record, language: str) -> set[str]:
    """The sections of a language of which a recorded text has something."""
    targets, known = set(languages()[language]), marks(language)
    numbers = {
        number
        for key, name in record.keys.items()
        if targets & set(key.split("/"))
        for number in record.texts[name]
    }
    every = list(record.paragraphs)
    lines = {line for number in numbers for line in every[number].splitlines()}
    return {known[line] for line in lines & known.keys()}


def unexplained(
    record: Record,
    reasons: Mapping[str, Mapping[str, str]] = REASONS,
    not_yet: Mapping[str, Sequence[str]] = NOT_YET,
) -> list[str]:
    """Sections that no text reaches and no table names; empty if all is well."""
    found = table_complaints(reasons, not_yet)
    for language in languages():
        named = {*reasons.get(language, ()), *not_yet.get(language, ())}
        seen = reached(record, language)
        for section in sections(language):
            if section.name not in seen | named:
                found.append(f"{language} {section.name}: no text reaches it")
            if section.name in seen & named:
                found.append(f"{language} {section.name}: is reached; take it from its table")
    return found


def table_complaints(
    reasons: Mapping[str, Mapping[str, str]] = REASONS,
    not_yet: Mapping[str, Sequence[str]] = NOT_YET,
) -> list[str]:
    """Entries of the tables that name no section, or name one twice."""
    found = []
    for language in sorted({*reasons, *not_yet}):
        if language not in languages():
            found.append(f"{language}: no target speaks this language")
            continue
        known = {section.name for section in sections(language)}
        entries = [*reasons.get(language, ()), *not_yet.get(language, ())]
        found += [f"{language} {e}: there is no such section" for e in entries if e not in known]
        twice = sorted({e for e in entries if entries.count(e) > 1})
        found += [f"{language} {e}: stands in both tables" for e in twice]
    return found


def coverage(record: Record) -> Iterator[str]:
    """How many sections are reached, a line for each language."""
    for language in languages():
        every = len(sections(language))
        counts = len(reached(record, language)), len(REASONS.get(language, ()))
        later = len(NOT_YET.get(language, ()))
        yield (
            f"{language}: {every} sections, {counts[0]} reached, {counts[1]} cannot be, "
            f"{later} not reached yet"
        )


# ---- commands ------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(PARAGRAPH)[0])
    parser.add_argument("command", choices=("record", "compare", "sections"))
    parser.add_argument("folder", type=Path, nargs="?", help="of the record")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="problems, as zoo/pool_*"
    )
    parser.add_argument(
        "--renamed", action="store_true", help="compare: names may be others, and are shown"
    )
    asked = parser.parse_args(words)
    folder = asked.folder and asked.folder.absolute()
    if not folder and asked.command != "sections":
        parser.error(f"{asked.command} needs a folder")
    os.chdir(ROOT)  # so that no text depends on where the clone lies
    try:
        names = corpus(asked.only)
        if asked.command == "sections":
            return _sections(read(folder) if folder else made_record(names, asked.jobs))
        if asked.command == "record":
            return _record(folder, names, asked.jobs)
        return _compare(folder, names, asked.jobs, may_be_renamed=asked.renamed)
    except BadUsage as error:
        print(f"replay: {error}", file=sys.stderr)
        return error.exit_code


def _record(folder: Path, names: Sequence[str], jobs: int) -> int:
    record = made_record(names, jobs)
    write(record, folder)
    size = sum(path.stat().st_size for path in (folder / MANIFEST, folder / TEXTS))
    print(
        f"{len(names)} problems, {len(record.keys)} texts, {len(record.texts)} of them different, "
        f"{size / 1e6:.1f} MB"
    )
    return 0


def _compare(folder: Path, names: Sequence[str], jobs: int, *, may_be_renamed: bool = False) -> int:
    """Where only some problems are asked for, only these are compared."""
    old, chosen = read(folder), set(names)
    everything = chosen == set(corpus())
    keys = {k: v for k, v in old.keys.items() if everything or _problem(k) in chosen}
    new = made_record(names, jobs)
    asked = Record(keys, old.texts, old.paragraphs)
    found = _shown_renamings(asked, new) if may_be_renamed else differences(asked, new)
    count = 0
    for difference in found:
        print(difference)
        count += 1
    print(f"{len(names)} problems, {len(new.keys)} texts: {count or 'no'} differences")
    return 1 if count else 0


def _shown_renamings(old: Record, new: Record) -> Iterator[str]:
    """What differs in more than names; what became what, in how many texts, is printed."""
    counts, parted = defaultdict[tuple[str, str], int](int), 0
    for key, found in renamed(old, new):
        if isinstance(found, str):
            yield f"{key}: {found}"
        else:
            parted += not found.whole
            for pair in found.pairs:
                counts[pair] += 1
    for (before, after), count in sorted(counts.items()):
        print(f"{before} -> {after} ({count})")
    print(f"{parted} texts are renamed one-to-one in each definition, and not as a whole")


def _problem(key: str) -> str:
    """The name of the problem that a key belongs to."""
    parts = key.split("/")
    ends = [k for k, part in enumerate(parts) if part in TARGETS or part == "error"]
    return "/".join(parts[: ends[0]])


def _sections(record: Record) -> int:
    found = unexplained(record)
    print("\n".join([*found, *coverage(record)]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
