"""Kernels -> the comment above each of them in an emitted file, and back: file -> its kernels.

A comment has a head, the lines of the model that ask for the kernel, and how it runs:

    // ---- add_relu: 67.1 MB, 16.8 MFLOP, predicted 28.4 us
    // from: x = x + self.bias
    //       return torch.relu(x)
    // how:  one pass: each element depends on the same element of its operands

What belongs to the kernel goes on until the next head; its entry, which Python calls, is the last.
Numbers of lines do not stand here: what moves in the model's file leaves the library as it is.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewright.errors import BadUsage

WIDTH = 100
MOST = 4  # lines of the model, of those that one kernel comes from
HEAD = re.compile(r"// ---- (\w+): (\d.*), (\d.* (?:T|G|M|)FLOP), predicted (\d.*)")
FROM, HOW, MORE = "// from: ", "// how:  ", "//       "
ENTRY = re.compile(r'extern "C" \w+ run_(\w+)\(')
END = "}"  # at the left margin: of a struct or an entry, but for a namespace's
TABLE = "_FUSEWRIGHT_KERNELS"


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel as an emitted file has it.

    lines: of the model that it comes from.  strategy: how it runs, in lines.  computes: its
    operators and what it writes.  text: its structs and its entry.
    """

    name: str
    bytes: str
    flops: str
    predicted: str
    lines: tuple[str, ...]
    strategy: tuple[str, ...]
    text: str

    @property
    def computes(self) -> str:
        """Its operators and what it writes, as the comment above its struct says."""
        before = self.text.partition(f"struct {self.name} {{")[0].rstrip().rpartition("\n")[2]
        return before.removeprefix("// ") if before.startswith("// ") else ""


# ---- writing -------------------------------------------------------------------------------------


def kernel_notes(
    name: str, amount: str, predicted: str, lines: Iterable[str], strategy: Iterable[str]
) -> tuple[str, ...]:
    """The comment above a kernel. lines: of the model's file, as they stand there."""
    said = [shown for line in dict.fromkeys(lines) if (shown := shown_line(line))]
    more = [f"{len(said) - MOST} more lines"] * (len(said) > MOST)
    how = [part for line in strategy for part in textwrap.wrap(line, WIDTH - len(MORE))]
    return (
        f"// ---- {name}: {amount}, predicted {predicted}",
        *_under(FROM, [*said[:MOST], *more]),
        *_under(HOW, how),
    )


def shown_line(line: str) -> str:
    """A line of Python as a comment of C++ inside a string of Python can hold it."""
    plain = line.strip().encode("ascii", "replace").decode()
    return textwrap.shorten(plain.replace('"""', "'''").rstrip("\\"), WIDTH, placeholder=" ...")


def _under(head: str, lines: Sequence[str]) -> list[str]:
    return [f"{MORE if k else head}{line}" for k, line in enumerate(lines)]


# ---- reading -------------------------------------------------------------------------------------


def emitted_kernels(text: str, name: str) -> tuple[EmittedKernel, ...]:
    """The kernels of an emitted file, in its order; BadUsage for any other. name: of the file."""
    if not _is_ours(text):
        raise BadUsage(f"{name}: this is no file that fusewright has written: its header is gone.")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise BadUsage(f"{name}: line {error.lineno}: this is no Python: {error.msg}.") from error
    values = dict(_constants(tree))
    table = values.get(TABLE, {})
    found = _kernels_of(values)
    listed = [*table] if isinstance(table, dict) else []
    if sorted(kernel.name for kernel in found) != sorted(listed):
        raise BadUsage(
            f"{name}: its kernels are {', '.join(listed) or 'none'}, but the comments above them "
            f"speak of {', '.join(k.name for k in found) or 'none'}. Write the file again."
        )
    return found


def kernels_in(text: str) -> tuple[EmittedKernel, ...]:
    """The kernels of any text of Python, as that of the classes of a module; none of another."""
    try:
        return _kernels_of(dict(_constants(ast.parse(text))))
    except (SyntaxError, ValueError):
        return ()


def _kernels_of(values: Mapping[str, object]) -> tuple[EmittedKernel, ...]:
    """values: the names at the top level that begin as ours do."""
    texts = [value for value in values.values() if isinstance(value, str)]
    return tuple(kernel for value in texts for kernel in _kernels(value))


def _is_ours(text: str) -> bool:
    """Whether the comment at the top is the header that we write."""
    head = itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))
    words = " ".join(word for line in head for word in line[1:].split())
    return words.startswith("ModelNew: ") and " by fusewright " in words


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The names at the top level that begin as ours do, and their values where these are plain."""
    for n in tree.body:
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
            name = n.targets[0].id
            if name.startswith("_FUSEWRIGHT_") and isinstance(n.value, (ast.Constant, ast.Dict)):
                try:
                    yield name, ast.literal_eval(n.value)
                except ValueError:
                    continue


def _kernels(text: str) -> Iterator[EmittedKernel]:
    """What follows each head in a text of C++, up to the end of the entry."""
    lines = text.split("\n")
    heads = [(k, head) for k, line in enumerate(lines) if (head := HEAD.fullmatch(line))]
    ends = [*(k for k, _ in heads[1:]), len(lines)]
    for (first, head), behind in zip(heads, ends, strict=False):
        name, moved, flops, predicted = head.groups()
        own = lines[first + 1 : behind]
        said, rest = _said(own, FROM)
        how, rest = _said(rest, HOW)
        yield EmittedKernel(name, moved, flops, predicted, said, how, _whole(rest, name))


def _said(lines: Sequence[str], head: str) -> tuple[tuple[str, ...], Sequence[str]]:
    """The lines under a head, and what is behind them."""
    if not (lines and lines[0].startswith(head)):
        return (), lines
    last = next((k for k, line in enumerate(lines) if k and not line.startswith(MORE)), len(lines))
    return tuple(line[len(head) :] for line in lines[:last]), lines[last:]


def _whole(lines: Sequence[str], name: str) -> str:
    """The lines up to the end of the entry of this name."""
    for k, line in enumerate(lines):
        entry = ENTRY.match(line)
        if entry and entry[1] == name:
            return "\n".join(lines[: lines.index(END, k) + 1]).strip("\n")
    return ""


def kernel_named(kernels: Sequence[EmittedKernel], name: str, file: str) -> EmittedKernel:
    """The kernel of this name; BadUsage says which there are."""
    by_name: Mapping[str, EmittedKernel] = {kernel.name: kernel for kernel in kernels}
    if name not in by_name:
        raise BadUsage(f"{file} has no kernel {name}: {_there(kernels)}.")
    return by_name[name]


def _there(kernels: Sequence[EmittedKernel]) -> str:
    return f"choose among {', '.join(k.name for k in kernels)}" if kernels else "it has none at all"


# ---- telling -------------------------------------------------------------------------------------


def kernels_table(kernels: Sequence[EmittedKernel]) -> str:
    """A line for each kernel, in columns."""
    head = ("kernel", "bytes", "operations", "predicted", "computes")
    rows = [head, *((k.name, k.bytes, k.flops, k.predicted, k.computes) for k in kernels)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (zip(row, widths, strict=True) for row in rows)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in padded)


def kernel_told(kernel: EmittedKernel) -> str:
    """All that the file has of a kernel, for a person."""
    return "\n".join(
        [
            f"{kernel.name}: {kernel.computes}",
            f"  {kernel.bytes}, {kernel.flops}, predicted {kernel.predicted}",
            *_listed("from", kernel.lines),
            *_listed("how", kernel.strategy),
            "",
            kernel.text,
        ]
    )


def _listed(word: str, lines: Sequence[str]) -> list[str]:
    return [f"  {'' if k else word + ':':<6}{line}" for k, line in enumerate(lines)]
