"""check -> the cheat that gets through when this check is switched off.

A fault that shows at every call also shows in experiments which report it as their own; `also`
names those, so that what is left out is one defence with all of its witnesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.corpus import Entry, Outcome, cheats, focused, judged, options_for

# Experiments that compare ordinary calls, and report what they find under their own names.
EVERY_CALL = (
    "stale-cache", "weight-change", "mode", "buffers", "instances", "determinism",
    "hazard-values", "hazard-strides", "hazard-shapes", "hazard-dtypes", "influence", "precision",
)  # fmt: skip


@dataclass(frozen=True)
class Without:
    cheat: str
    also: tuple[str, ...] = ()


ABLATION: Mapping[str, Without] = {
    "parameters": Without("c36_writes_to_its_parameters", ("values", "accuracy", *EVERY_CALL)),
    "values": Without("c01_freed_memory", ("accuracy", "nonfinite", *EVERY_CALL)),
    "accuracy": Without("n06_tanh_gelu", ("values", *EVERY_CALL)),
    "nonfinite": Without("c11_one_nan", ("values", *EVERY_CALL)),
    "precision": Without("n02_twelve_bits", ("hazard-values", "hazard-shapes")),
    "influence": Without(
        "r04_signature_cache", ("precision", "stale-cache", "weight-change", "hazard-values")
    ),
    "input-mutation": Without("c07_scratch_in_the_input"),
    "aliasing": Without("c08_returns_its_input", ("hazard-strides",)),
    "output-reuse": Without("r10_two_buffers", ("aliasing", "instances")),
    "stale-cache": Without("r01_pointer_cache"),
    "weight-change": Without("r09_version_key"),
    "buffers": Without("c35_counts_no_batches"),
    "mode": Without("c35_updates_in_eval", ("parameters", "values", *EVERY_CALL)),
    "guard-bands": Without("f02_writes_past_its_input"),
    "hazard-values": Without("n07_one_pass_variance"),
    "hazard-strides": Without("f19_assumes_contiguous"),
    "hazard-shapes": Without("f20_empty_batch"),
    "hazard-dtypes": Without("c26_bits_of_float32"),
    "instances": Without("f22_shared_workspace", ("values", "accuracy", "determinism")),
    # Where a processor multiplies in bfloat16, what it sets is less accurate, too.
    "global-state": Without("t14_matmul_precision", ("accuracy",)),
    "gradients": Without("c33_unit_cotangent"),
    "leftovers": Without("t29_daemon"),
    "resources": Without("f15_leaks"),
    "timing-outputs": Without("t19_sniffs_the_command"),
    "determinism": Without("c40_remembers_in_half", ("stale-cache",)),
    # How these two come by their times is seen where it is done, too.
    "timing-floor": Without("t24_no_time_at_all", ("timing-clocks", "global-state")),
    "timing-clocks": Without("t10_code_swap", ("global-state",)),
}


def without(check: str, *, whole: bool, truth: str = "rows") -> Outcome:
    """The verdict on the cheat of `check`, which is ignored; `whole` runs every experiment, and
    `truth` is as of `judge`."""
    row, entries = ABLATION[check], {entry.name: entry for entry in cheats()}
    entry: Entry = entries[row.cheat]
    options = dict(options_for(entry) if whole else focused(entry))
    ignored: Sequence[str] = (check, *row.also)
    given = {**options, "ignored": list(ignored), "truth": truth}
    return judged(entry.problem, entry.path, given)
