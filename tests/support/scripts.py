"""A script of tools/ or bench/, which are no packages -> its module, for tests of what is in it."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.support.folders import ROOT


def load_script(path: str) -> ModuleType:
    """The module in a file of the repository, as `tools/replay.py`; each time a new one."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module
