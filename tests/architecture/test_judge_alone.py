"""The judge knows nothing of the compiler, and few ask it; what must be cheap loads no PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import Source, made_up

# What the judge may import beside itself.
BELOW = {"errors", "common"}
# Packages that may import the judge, with the reason.
ASKS = {
    "__init__": "`fusewright.judge` and its verdict are exports",
    "report": "a report holds findings",
    "profiling": "what is profiled runs in processes of the judge's, in turns as of `bench`",
    "html_report": "a page shows each check with its promise",
    "compiler": "what was written is judged, by processes that start early",
    "suite": "rows hold findings; its judges start before the first problem",
    "arena": "its rows hold verdicts, and times of one run",
    "doctor": "which sandbox there can be, is for the judge to say",
    "cli": "commands of the judge",
}


def complaints(source: Source) -> Iterator[str]:
    for module in source.modules():
        package = module.partition("/")[0]
        for line, name in source.imported(module):
            target = name.partition("/")[0]
            beyond = package == "judge" and target not in BELOW | {"judge", "__init__"}
            if beyond or (target == "judge" and package not in ASKS.keys() | {"judge"}):
                yield f"{module}.py:{line} imports {name}.py"


def test_the_judge_stands_alone() -> None:
    assert not list(complaints(Source()))


def test_every_package_that_is_listed_asks() -> None:
    source = Source()
    asking = {
        module.partition("/")[0]
        for module in source.modules()
        for _, name in source.imported(module)
        if name.partition("/")[0] == "judge"
    }
    assert asking - {"judge"} == ASKS.keys()


def test_a_judge_that_knows_the_compiler_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "errors": "",
            "ir/graph": "",
            "judge/findings": "from fusewright.errors import UnusableProblem\n",
            "judge/judging": "def judge():\n    from fusewright.ir.graph import Graph\n",
            "fusion/planner": "import fusewright.judge.findings\n",
            "report/run_report": "from fusewright.judge.findings import Verdict\n",
        },
    )
    assert list(complaints(source)) == [
        "fusion/planner.py:1 imports judge/findings.py",
        "judge/judging.py:2 imports ir/graph.py",
    ]


def loads_torch(statement: str, *path: Path) -> bool:
    places = "".join(f"sys.path.insert(0, {str(p)!r}); " for p in path)
    check = f"import sys; {places}{statement}; sys.exit('torch' in sys.modules)"
    return bool(subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode)


@pytest.mark.parametrize(
    "statement",
    [
        "import fusewright",
        "import fusewright.common.problem_file",
        "import fusewright.report.run_report",
        "import fusewright.cli.main",
        "import fusewright.judge.findings",
        "from fusewright import Verdict",
    ],
)
def test_import_is_cheap(statement: str) -> None:
    """PyTorch takes seconds to import, and the parent of a judgement must never hold it."""
    assert not loads_torch(statement)


def test_an_import_of_torch_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "dear.py").write_text("import torch\n")
    assert loads_torch("import dear", tmp_path)


def test_the_judge_is_a_package_that_can_be_called() -> None:
    import fusewright

    assert callable(fusewright.judge)
