"""Rules that a caller asks for -> a refusal, where what was made breaks one."""

from __future__ import annotations

from fusewright.compiler.compilation import Compilation
from fusewright.errors import BadUsage
from fusewright.kernels.registry import family_of


def check_rules_of_parts(rules: frozenset[str], why: str) -> None:
    """Raise BadUsage for a rule that a model in parts breaks. why: it is one."""
    if broken := sorted({"no-library", "no-workspace"} & rules):
        raise BadUsage(
            f"--rules {','.join(broken)} cannot be kept: the model can only be taken in parts, and "
            f"PyTorch calculates what is between them. {why} Or drop the rule: all others are kept "
            "by each part that gets kernels."
        )


def check_rules(made: Compilation, rules: frozenset[str]) -> None:
    """Raise BadUsage for a rule that the plan breaks."""
    planned = made.plan
    scratch = {text.name for text in made.texts if text.launch.workspace}
    packing = [k for k in planned.kernels if k.anchor and k.name in scratch]
    for rule in sorted(rules & {"no-prepack", "no-workspace"} if packing else ()):
        names = ", ".join(k.name for k in packing)
        raise BadUsage(
            f"--rules {rule} cannot be kept: {names} packs one operand of its contraction into "
            f"memory of its own. {family_of(packing[0]).workspace_advice} Drop the rule."
        )
    calls = [s.node for s in planned.libraries if s.node.op == "library"]
    if "no-library" in rules and calls:
        names = ", ".join(dict.fromkeys(n.short_name for n in calls))
        raise BadUsage(
            f"--rules no-library cannot be kept: {names} stays a library call on "
            f"{planned.target.name}. Drop the rule, or see the record of `fusewright explain`."
        )
    results = [n for kernel in planned.kernels for n in kernel.outputs] + calls
    reused = {id(leaf) for pairs in made.layout.in_place.values() for _, leaf in pairs}
    kept = reused | {id(n) for n in planned.graph.outputs}
    if "no-workspace" in rules and any(id(n) not in kept for n in results):
        raise BadUsage(
            "--rules no-workspace cannot be kept: the plan has tensors between its steps. "
            "Drop the rule."
        )
