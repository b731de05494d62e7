"""What a file that imports the user's classes asks when it is imported: whether they are the ones
that its kernels were made from.

A file that holds the user's text needs no such question. Here the text stands elsewhere, where it
may be edited, and kernels would go on computing what it said before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewright.emit.formatter import wrap
from fusewright.emit.python_text import literal

DIGITS = 16
_ASK = '''
def _fusewright_same_files(kinds):
    """Classes have their own forward where a file is not the one that kernels were made from."""
    import hashlib
    import sys
    import warnings
    from pathlib import Path

    for name, digest in _FUSEWRIGHT_FILES.items():
        path = Path(getattr(sys.modules[name], "__file__", None) or "")
        text = path.read_bytes().replace(b"\\r\\n", b"\\n") if path.is_file() else b""
        if hashlib.sha256(text).hexdigest()[:{digits}] != digest:
            warnings.warn(
                f"{{__name__}} has no kernels: {{name}} is not what they were made from. Save it "
                "again with fusewright.",
                stacklevel=3,
            )
            for kind in kinds:
                kind.forward = kind.reference_forward
            return


_fusewright_same_files([{kinds}])
'''


def same_files(files: Mapping[str, str], kinds: Sequence[str]) -> list[str]:
    """The lines. files: module -> digest of its text.  kinds: names of classes with kernels."""
    rows = [
        line for n, digest in files.items() for line in wrap(f"{literal(n)}: {literal(digest)},", 4)
    ]
    table = ["_FUSEWRIGHT_FILES = {  # module -> what its file was", *rows, "}", ""]
    return [*table, *_ASK.format(digits=DIGITS, kinds=", ".join(kinds)).rstrip().split("\n")]
