"""The public harness's static rules, as regular expressions over the whole emitted file.

Comments are cut first: each line at the first `#`, then at the first `//`. What remains is
searched, words in strings and documentation included.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.emit.guard_condition import REASONS
from fusewright.emit.guard_snapshot import LOOK_IN_PYTHON
from fusewright.emit.runtime_snippets import SNIPPETS
from tests.support.emitting import EXAMPLES, emit_example, emit_file
from tests.support.folders import ROOT

FORBIDDEN = (
    r"\btry\s*:",
    r"\bexcept\b",
    r"\bpass\b",
    r"torch\.cuda\.(Event|synchronize)\s*=",
    r"\.(record|elapsed_time)\s*=",
    r"\btime\.(perf_counter|time)\s*=",
    r"\b(import|from)\s+(threading|multiprocessing|concurrent)\b",
    r"\bthreading\.Thread\(|\bmultiprocessing\.|\bconcurrent\.futures|\b(Thread|Process)PoolExecutor",
    r"_make_subclass|class\s+\w+\((torch\.)?Tensor\)|torch\.Tensor\.__new__",
    r"\bcuda\.Stream\(|with torch\.cuda\.stream|\.wait_stream\(|\.record_stream\(",
    r"__float2half(_rn)?\(|\(__half\)|static_cast<half>|\.half\(|\.float16\(|\.to\(torch\.float16\)",
)


SUPPORT = {"reasons": REASONS, "look": LOOK_IN_PYTHON, **SNIPPETS}


def without_comments(text: str) -> str:
    return "\n".join(line.split("#")[0].split("//")[0] for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_static_rules(name: str, target: str, tmp_path: Path) -> None:
    text = without_comments(emit_example(name, tmp_path, target).text)
    assert [rule for rule in FORBIDDEN if re.search(rule, text)] == []
    assert re.search(r"load_inline|cpp_extension", text)
    assert ("__global__" in text) is target.startswith("sm_")


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["network_residual_stack", "network_transformer_block"])
def test_networks_keep_the_rules(name: str, target: str, tmp_path: Path) -> None:
    """Of which a GPU is launched all steps at once, and both modes have kernels."""
    text = emit_file(ROOT / f"zoo/{name}.py", tmp_path, target).text
    assert ("_fusewright_replayed(" in text) is target.startswith("sm_")
    assert [rule for rule in FORBIDDEN if re.search(rule, without_comments(text))] == []


@pytest.mark.parametrize("name", SUPPORT)
def test_nothing_beside_kernels_breaks_a_rule(name: str) -> None:
    """Whichever files have it."""
    text = without_comments(SUPPORT[name])
    assert [rule for rule in FORBIDDEN if re.search(rule, text)] == []


def test_rules_find_what_they_should() -> None:
    """The expressions above are not vacuous."""
    bad = "try :\n except OSError:\n  pass\nimport threading\nx.to(torch.float16)\n"
    assert sum(bool(re.search(rule, bad)) for rule in FORBIDDEN) == 5


def test_names_at_module_level(tmp_path: Path) -> None:
    """Both files run in one namespace: beside ModelNew nothing of the reference is redefined."""
    problem = load_problem(ROOT / "examples" / "swish_bias_groupnorm.py")
    emitted = emit_example("swish_bias_groupnorm", tmp_path).load()
    new = {n for n in vars(emitted) if not n.startswith("__")} - set(vars(problem.module))
    assert {n for n in new if not n.lower().startswith("_fusewright")} == {"ModelNew"}
    assert emitted.batch_size == problem.module.batch_size, "overrides are not written to the file"


@pytest.mark.compiler
def test_one_namespace_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the harness does it: shared globals, same seed, no state copied, train mode, no_grad."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kernels"))
    source = (ROOT / "examples" / "swish_bias_groupnorm.py").read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    exec(compile(source, "reference", "exec"), scope)
    scope.update(batch_size=6, in_features=24, out_features=128)
    model = scope["Model"]
    exec(compile(emit_example("swish_bias_groupnorm", tmp_path).text, "ours", "exec"), scope)
    arguments = (24, 128, 64, (128,))
    made = []
    for kind in (model, scope["ModelNew"]):
        torch.manual_seed(42)
        made.append(kind(*arguments))  # type: ignore[operator]
    x = torch.rand(6, 24)
    with torch.no_grad():
        assert torch.allclose(made[0](x), made[1](x), rtol=1e-4, atol=1e-4)
