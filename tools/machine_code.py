"""Two records of tools/replay.py -> do their emitted files compile to the same machine code?

    python tools/machine_code.py compile ../before [--only zoo/pool_*] [--jobs 2]
    python tools/machine_code.py compare ../before ../after

`compile` makes PTX of every recorded file for a GPU and assembly of every one for a CPU, with the
options that the files themselves use, and leaves it in the record's folder `machine`; what is there
is not made again. `compare` says which are equal but for names: the same tokens in the same order,
and names one-to-one. It takes nvcc and g++ for the machine's own CPU; no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fusewright.targets.compile_flags import CPP_FLAGS, cuda_flags
from fusewright.targets.target import TARGETS

# The device library, and what is generated; before there were two, the one had both.
PROGRAM = re.compile(r'_FUSEWRIGHT_(DEVICE_LIBRARY|CUDA|CPP) = r"""(.*?)"""', re.DOTALL)
TOKEN = re.compile(r'[A-Za-z_$%.@][\w$%.@]*|\d[\w.]*|"[^"]*"|\S')
# What may be another name: symbols and labels, and sections that have a symbol's name.
SYMBOL = re.compile(r"[A-Za-z_]|\$?\.?L|\.(?:text|rodata|data|bss|gcc_except_table)[.\w]*\.")
LEFT_ASIDE = re.compile(r"//[^\n]*|^\s*\.(?:file|ident|loc)\b[^\n]*|^\s*#[^\n]*", re.MULTILINE)
SECONDS = 600  # that one compiler may take


def programs(record: Path) -> Iterator[tuple[str, str, str]]:
    """The name, the target and the C++ of every emitted file that has kernels."""
    keys = json.loads((record / "manifest.json").read_text(encoding="utf-8"))
    kept = json.loads((record / "texts.json").read_text(encoding="utf-8"))
    for key, text in keys.items():
        problem, _, name = key.rpartition("/")
        source = "\n\n".join(kept["paragraphs"][k] for k in kept["texts"][text])
        found = dict(PROGRAM.findall(source)) if name == "file" else {}
        if library := found.pop("DEVICE_LIBRARY", ""):
            library += "\n"
        for kernels in found.values():
            (target,) = (part for part in problem.split("/") if part in TARGETS)
            yield problem, target, library + kernels


def compile_program(folder: Path, program: tuple[str, str, str]) -> str:
    """Leave the machine code in the folder; the compiler's complaint, if it has one."""
    name, target, text = program
    on_cpu = target == "cpu"
    source = folder / f"{name.replace('/', '.')}.{'cpp' if on_cpu else 'cu'}"
    made = source.with_suffix(".s")
    if made.exists() and source.read_text(encoding="utf-8") == text:
        return ""
    source.write_text(text, encoding="utf-8")
    if on_cpu:
        command = ["g++", *CPP_FLAGS, "-march=native", "-fPIC", "-S"]
    else:
        command = ["nvcc", *cuda_flags(TARGETS[target].arch), "-ptx"]
    done = subprocess.run(
        [*command, str(source), "-o", str(made)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return f"{name}: {done.stderr[:500]}" if done.returncode else ""


class Token(NamedTuple):
    """may_change: whether it is a name, and no instruction, register, number or directive."""

    text: str
    may_change: bool


def tokens(code: str) -> Iterator[Token]:
    """Of PTX or assembly, line by line."""
    for line in LEFT_ASIDE.sub("", code).splitlines():
        found = TOKEN.findall(line)
        opens = 2 if found[:1] == ["@"] else int(bool(found) and found[0].startswith("@"))
        for k, text in enumerate(found):
            is_label = found[k + 1 : k + 2] == [":"]
            is_instruction = k == opens and not is_label
            yield Token(text, bool(SYMBOL.match(text)) and not is_instruction)


def difference(old: str, new: str) -> str:
    """Where two machine codes differ in more than names; empty if nowhere."""
    before, after = list(tokens(old)), list(tokens(new))
    if len(before) != len(after):
        return f"{len(before)} tokens became {len(after)}"
    became, was = dict[str, str](), dict[str, str]()
    for one, other in zip(before, after, strict=True):
        if one.text != other.text and not (one.may_change and other.may_change):
            return f"{one.text} became {other.text}"
        first, last = (
            became.setdefault(one.text, other.text),
            was.setdefault(other.text, one.text),
        )
        if (first, last) != (other.text, one.text):
            return f"{one.text} became {first} and {other.text}, or {last} did, too"
    return ""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("compile")
    first.add_argument("record", type=Path)
    first.add_argument("--only", default="*", metavar="PATTERN", help="problems, as zoo/pool_*")
    first.add_argument("--jobs", type=int, default=2)
    second = commands.add_parser("compare")
    second.add_argument("records", type=Path, nargs=2)
    asked = parser.parse_args(words)
    if asked.command == "compile":
        return _compile(asked.record, asked.only, asked.jobs)
    return _compare(*asked.records)


def _compile(record: Path, only: str, jobs: int) -> int:
    folder = record / "machine"
    folder.mkdir(exist_ok=True)
    chosen = [p for p in programs(record) if fnmatchcase(p[0].rpartition("/")[0], only)]
    with ThreadPoolExecutor(jobs) as pool:
        failed = list(filter(None, pool.map(partial(compile_program, folder), chosen)))
    print("\n".join([*failed, f"{len(chosen)} files, {len(failed)} that do not compile"]))
    return 1 if failed else 0


def _compare(before: Path, after: Path) -> int:
    """What only one of them has was not compiled, or is no problem there."""
    count = differ = 0
    for old in sorted((before / "machine").glob("*.s")):
        new = after / "machine" / old.name
        if not new.exists():
            continue
        count += 1
        texts = (path.read_text(encoding="utf-8") for path in (old, new))
        if told := difference(*texts):
            differ += 1
            print(f"{old.stem}: {told}")
    print(f"{count} files: {count - differ} equal but for names, {differ or 'none'} otherwise")
    return 1 if differ or not count else 0


if __name__ == "__main__":
    sys.exit(main())
