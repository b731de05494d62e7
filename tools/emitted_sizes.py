"""Problem files -> how long their emitted files are: `python tools/emitted_sizes.py zoo examples`.

For each target: the median and the largest length of the whole file, of the generated kernels in it
and of the device library's part, in letters. Nothing is compiled, and no GPU is asked.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same texts with and without a GPU

from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.compiler.pipeline import emit_only
from fusewright.errors import FusewrightError
from fusewright.targets.target import TARGETS

PROGRAM = re.compile(r'_FUSEWRIGHT_(?:CUDA|CPP|DEVICE_LIBRARY) = r"""(.*?)"""', re.DOTALL)


def lengths(path: Path, target: str) -> tuple[int, int]:
    """Of the emitted file, and of the C++ or CUDA in it."""
    _, text = emit_only(path, out=STANDARD_OUTPUT, target=target)
    return len(text), sum(map(len, PROGRAM.findall(text)))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", type=Path, nargs="+", help="problem files, or folders of them")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="each Nth file of a folder"
    )
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    asked = parser.parse_args(words)
    files = [
        file
        for path in asked.paths
        for file in (sorted(path.glob("*.py"))[:: asked.every] if path.is_dir() else [path])
    ]
    for target in asked.target or ("cpu", "sm_80", "sm_90a"):
        found = dict[Path, tuple[int, int]]()
        for file in files:
            try:
                found[file] = lengths(file, target)
            except FusewrightError as error:
                print(f"{file}: {error}", file=sys.stderr)
        if not found:
            return 1
        whole, program = zip(*found.values(), strict=True)
        longest = max(found, key=lambda file: found[file])
        print(
            f"{target:8} {len(found)} files: median {median(whole):.0f}, "
            f"of which C++ {median(program):.0f}; largest {max(whole)} ({longest})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
