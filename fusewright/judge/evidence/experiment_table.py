"""Name -> experiment: what the parent may ask the trusted worker to run on a candidate's worker.

The parent knows experiments by their names only; the functions behind them need PyTorch, which it
never loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.judge.evidence import experiments, gradients, hazards, run_probes
from fusewright.judge.evidence.trial import Steps, Trial

EXPERIMENTS: Mapping[str, Callable[[Trial], Steps]] = {
    "setup": experiments.setup,
    "fresh": experiments.fresh,
    "grad-mode": experiments.grad_mode,
    "stale-cache": experiments.stale_cache,
    "weight-change": experiments.weight_change,
    "modes": experiments.modes,
    "buffers": experiments.buffers,
    "instances": experiments.instances,
    "determinism": experiments.determinism,
    "probes": run_probes.probe_runs,
    "hazards": hazards.hazards,
    "dtypes": hazards.dtypes,
    "no-default": hazards.no_default,
    "soak": experiments.soak,
    "gradients": gradients.gradients,
    "side-stream": experiments.side_stream,
    "exact": experiments.exact,
    "global-state": experiments.global_state,
}
