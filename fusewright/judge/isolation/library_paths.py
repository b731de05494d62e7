"""The caller's Python and tools -> where workers look for modules, what a candidate may read.

A worker is started without the caller's environment, and sees a root folder with little in it. What
the problem and the candidate import, and what builds an extension, must be there all the same:
folders of PYTHONPATH, of .pth files, of the user's own site, packages that were installed to be
edited, a compiler in somebody's home. All of it is shown read-only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fusewright.common import package
from fusewright.errors import ToolMissing

PACKAGE = package.PACKAGE.resolve()
# The first lines of every worker. An isolated interpreter has its own site, with .pth files, and
# neither PYTHONPATH nor the user's site, which has .pth files, too.
PATHS = """
import json, site, sys
before, sites, after = json.loads(sys.argv.pop(1))
sys.path[:0] = [p for p in before if p not in sys.path]
for folder in sites:
    site.addsitedir(folder)
sys.path.extend(p for p in after if p not in sys.path)
"""
# Finders of packages that were installed to be edited have tables of where these lie.
_ASK = f"""{PATHS}
import os
def paths(value, depth=3):
    if isinstance(value, str):
        return [value] if os.path.isabs(value) and os.path.exists(value) else []
    if isinstance(value, dict):
        value = value.values()
    if depth and isinstance(value, (list, tuple, set, type({{}}.values()))):
        return [p for v in value for p in paths(v, depth - 1)]
    return []
found = [p for p in sys.path if os.path.isabs(p)]
for finder in sys.meta_path:
    facts = getattr(finder, "__dict__", {{}})
    if "editable" in facts.get("__module__", ""):
        facts = {{**vars(sys.modules[facts["__module__"]]), "__file__": ""}}
    found += paths(dict(facts))
print(json.dumps(found))
"""
_ASK_S = 60.0
TOOLS = ("c++", "g++", "ninja", "nvcc")


def library_folder() -> str:
    """Where torch lives, in case the isolated interpreter does not look there by itself."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolMissing("PyTorch is not installed for this Python; the judge needs it.")
    return str(Path(spec.origin).parent.parent)


def search() -> str:
    """Where workers look for modules besides their own site, as `PATHS` reads it."""
    named = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    before = [p for p in named if p in map(os.path.abspath, sys.path)]
    own = site.getusersitepackages()
    sites = [own] if site.ENABLE_USER_SITE and own in sys.path else []
    return json.dumps([before, sites, [library_folder()]])


def readable() -> tuple[str, ...]:
    """Folders and files that a worker of a candidate may read, with the places behind links.

    A folder with more in it than libraries (a home, the temporary folder) shows what can be
    imported from it.
    """
    own = {sys.prefix, sys.base_prefix, str(PACKAGE), library_folder()}
    found = own | {p for path in _looked_through(search()) for p in _narrowed(Path(path))}
    found |= {p for folder in _installations() for p in _narrowed(Path(folder))}
    return tuple(sorted(found | {os.path.realpath(p) for p in found}))


def tool_folders() -> tuple[str, ...]:
    """Where the caller's compilers are, for the end of a worker's PATH."""
    return tuple(dict.fromkeys(os.path.dirname(tool) for tool in _found_tools()))


def _found_tools() -> tuple[str, ...]:
    named = [os.environ[n].split()[0] for n in ("CC", "CXX") if os.environ.get(n, "").split()]
    return tuple(os.path.abspath(t) for name in (*TOOLS, *named) if (t := shutil.which(name)))


@cache
def _looked_through(where: str) -> tuple[str, ...]:
    """What a worker that is told this looks through."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", _ASK, where],
            capture_output=True, check=True, timeout=_ASK_S, cwd="/", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()  # then only what is installed is there


def _installations() -> Iterator[str]:
    """What compilers belong to, and the libraries that they are told of."""
    for tool in _found_tools():
        for place in (Path(tool), Path(os.path.realpath(tool))):
            folder = place.parent.parent if place.parent.name == "bin" else place.parent
            yield str(place.parent if _broad(folder) else folder)
    for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        yield from (p for p in os.environ.get(name, "").split(os.pathsep) if os.path.isabs(p))


def _narrowed(path: Path) -> Iterator[str]:
    if not _broad(path):
        yield str(path)
        return
    for entry in path.iterdir() if os.access(path, os.R_OK) else ():
        if entry.suffix in (".py", ".so") or (entry / "__init__.py").is_file():
            yield str(entry)


def _broad(path: Path) -> bool:
    """A folder of everything: that of the system, of a user, of temporary files, or one above."""
    places = (Path(tempfile.gettempdir()), Path.home(), Path("/tmp"), Path("/dev/shm"))
    return any(place.resolve().is_relative_to(path.resolve()) for place in places)
