"""What a verdict costs: seconds by phase, calls, float64 runs and bytes of full-size problems.

    python bench/verdicts.py [--target cpu|cuda] [--timing] [--truth rows|whole]
                             [--seconds 300] [--list] [--output FILE] [NAMES]

Each problem is a file of zoo/ or examples/ with sizes of its own, optimized and judged by commands
as a user gives them: `optimize` without tuning and timing, or with both (--timing). With --truth
whole, the file it wrote is judged once more by `judge --truth whole`, and that is what counts.

For a GPU there are twenty problems: products, convolutions of one to three dimensions and
transposed, reductions and maps of 1 to 8 GB, and networks. For a CPU there are small ones and some
of 0.1 GB. Seconds are those of the whole command, imports of PyTorch included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peaks import watched

LEAVE_S = 20.0  # after it was asked to stop, a command may take so long to tidy up
ROOT = Path(__file__).resolve().parent.parent

Sizes = Mapping[str, int]

GPU: Mapping[str, tuple[str, Sizes]] = {
    "product_relu": ("examples/gemm_add_relu.py", {}),
    "product_groups": ("examples/swish_bias_groupnorm.py", {}),
    "product_softmax": (
        "zoo/linear_gelu_softmax.py",
        {"rows": 16384, "width": 4096, "out_width": 4096},
    ),
    "product_batched": (
        "zoo/matmul_batched.py",
        {"batch_size": 64, "rows": 1024, "depth": 1024, "columns": 1024},
    ),
    "conv1d_gated": (
        "zoo/conv1d_gated_dilated.py",
        {"batch_size": 32, "channels": 128, "length": 16384},
    ),
    "conv2d_relu": ("examples/conv_relu_bias.py", {}),
    "conv2d_depthwise": (
        "zoo/conv2d_depthwise_separable.py",
        {"batch_size": 64, "channels": 128, "out_channels": 256, "side": 112},
    ),
    "conv3d_groups": (
        "zoo/conv3d_groupnorm_clamp.py",
        {"batch_size": 32, "channels": 16, "out_channels": 32, "side": 32},
    ),
    "transposed1d": (
        "zoo/transposed1d_dilated.py",
        {"batch_size": 32, "channels": 64, "out_channels": 64, "length": 16384},
    ),
    "transposed2d_tanh": (
        "zoo/transposed2d_bias_tanh.py",
        {"batch_size": 32, "channels": 128, "out_channels": 64, "side": 96},
    ),
    "transposed3d_groups": (
        "zoo/transposed3d_swish_groups.py",
        {"batch_size": 32, "channels": 32, "out_channels": 64, "side": 16},
    ),
    "sum_8gb": ("zoo/reduce_sum_rows.py", {"rows": 65536, "columns": 32768}),
    "norms_4gb": ("zoo/reduce_norms.py", {"rows": 65536, "columns": 16384}),
    "spatial_mean_1gb": (
        "zoo/reduce_spatial_mean.py",
        {"batch_size": 64, "channels": 256, "side": 128},
    ),
    "gelu_2gb": ("zoo/map_gelu_both.py", {"rows": 16384, "columns": 32768}),
    "layer_norm_1gb": ("zoo/norm_layer.py", {"rows": 65536, "width": 4096}),
    "softmax_1gb": ("zoo/softmax_rows.py", {"rows": 65536, "columns": 4096}),
    "transformer": (
        "zoo/network_transformer_block.py",
        {"batch_size": 8, "length": 1024, "width": 1024, "heads": 16},
    ),
    "unet": ("zoo/network_unet.py", {"batch_size": 16, "width": 64, "side": 256}),
    "classifier": ("zoo/network_small_classifier.py", {"batch_size": 4096}),
}
CPU: Mapping[str, tuple[str, Sizes]] = {
    "product_small": ("zoo/linear_gelu_softmax.py", {}),
    "conv2d_small": ("zoo/conv2d_scale_min.py", {}),
    "layer_norm_small": ("zoo/norm_layer.py", {}),
    "network_small": ("zoo/network_mlp_residual.py", {}),
    "layer_norm_0.1gb": ("zoo/norm_layer.py", {"rows": 32768}),
    "gate_0.1gb": ("zoo/map_swish_gate.py", {"rows": 32768}),
    "sum_0.1gb": ("zoo/reduce_sum_rows.py", {"rows": 24576}),
    "product_0.1gb": ("zoo/linear_gelu_softmax.py", {"rows": 65536}),
}


@dataclass(frozen=True)
class Told:
    """What a report says of one problem's verdict."""

    name: str
    verdict: str
    seconds: float
    """Of the whole command."""
    phases: Mapping[str, float]
    calls: int
    float64_runs: int
    gigabytes: float
    """Sent to the candidate and returned by it."""
    peaks: Mapping[str, float]
    """Gigabytes, by process, as the judge saw them."""
    host: float
    """Gigabytes of the host that all processes together had at most."""
    gpu: float
    """The same of the GPU."""
    need: tuple[float, float]
    """What was estimated before of both."""

    @property
    def over(self) -> float:
        """The larger of the two shares of what was estimated."""
        pairs = zip((self.host, self.gpu), self.need, strict=True)
        return max((seen / most for seen, most in pairs if most), default=0.0)

    def __str__(self) -> str:
        longest = sorted(self.phases.items(), key=lambda item: -item[1])[:6]
        return (
            f"{self.name:20} {self.verdict:12} {self.seconds:6.1f} s  {self.calls:4} calls  "
            f"{self.float64_runs:3} float64  {self.gigabytes:6.2f} GB moved  "
            f"{self.host:5.2f} of {self.need[0]:.1f} GB, "
            f"GPU {self.gpu:5.2f} of {self.need[1]:.1f}  "
            + ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in longest)
        )


def main() -> int:
    given = _arguments()
    table = GPU if given.target == "cuda" else CPU
    if unknown := set(given.names) - set(table):
        sys.exit(f"no problem is called {', '.join(sorted(unknown))}")
    names = given.names or list(table)
    if given.list:
        print("\n".join(f"{name}: {table[name][0]} {dict(table[name][1])}" for name in names))
        return 0
    where = torch.cuda.get_device_name() if given.target == "cuda" else "CPU"
    print(f"{where}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}", flush=True)
    every = []
    for told in _verdicts(given, {name: table[name] for name in names}):
        every.append(told)
        print(told, flush=True)
        if given.output:
            rows = [asdict(row) for row in every]
            given.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    seconds = [told.seconds for told in every]
    verified = sum(told.verdict == "verified" for told in every)
    print(
        f"{len(every)} problems, {verified} verified; seconds: median "
        f"{statistics.median(seconds):.1f}, least {min(seconds):.1f}, most {max(seconds):.1f}"
    )
    shares = [told.over for told in every if any(told.need)]
    within, most = sum(share <= 1.0 for share in shares), max(shares, default=0.0)
    print(f"memory within the estimate in {within} of {len(shares)}, at most {most:.2f} of it")
    return 0 if verified == len(every) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--target", choices=("cpu", "cuda"), default=here)
    parser.add_argument("--timing", action="store_true", help="tune and time, too")
    parser.add_argument("--truth", choices=("rows", "whole"), default="rows", help="as of judge")
    parser.add_argument("--seconds", type=float, default=300.0, help="of one command at most")
    parser.add_argument("--list", action="store_true", help="print the problems and end")
    parser.add_argument("--output", type=Path, help="a file for all numbers, as JSON")
    parser.add_argument("names", nargs="*", help="problems; all of them if none is named")
    return parser.parse_args()


def _verdicts(given: argparse.Namespace, table: Mapping[str, tuple[str, Sizes]]) -> Iterator[Told]:
    with tempfile.TemporaryDirectory(prefix="fusewright-verdicts-") as folder:
        for name, (file, sizes) in table.items():
            written, report = Path(folder, f"{name}.py"), Path(folder, f"{name}.json")
            os.environ["TORCH_EXTENSIONS_DIR"] = f"{folder}/{name}"  # kernels are compiled anew
            shape = [f"--set={key}={value}" for key, value in sizes.items()]
            problem = str(ROOT / file)
            timing = [] if given.timing else ["--no-timing"]
            tuning = [] if given.timing else ["--tune", "off"]
            order = ["optimize", problem, "-o", str(written), "--target", given.target]
            told = _told(name, [*order, *timing, *tuning, *shape], report, given.seconds)
            if given.truth == "whole" and written.exists():
                order = ["judge", problem, str(written), "--truth", "whole"]
                told = _told(name, [*order, *timing, *shape], report, given.seconds)
            yield told


def _told(name: str, order: list[str], report: Path, limit: float) -> Told:
    report.unlink(missing_ok=True)
    begin = time.monotonic()
    command = [sys.executable, "-m", "fusewright", *order, "--report", str(report)]
    with (
        watched(gpu="cuda" in order) as seen,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=limit)
            last = out.strip().splitlines()[-1:] + err.strip().splitlines()[-1:]
            why = f"exit {process.returncode}: {' '.join(last)}"[:200]
        except subprocess.TimeoutExpired:
            why = f"none in {limit:.0f} s"
            process.send_signal(signal.SIGINT)  # so that it tidies up
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=LEAVE_S)
            process.kill()
    seconds = time.monotonic() - begin
    peaks = seen.host / 1e9, seen.gpu / 1e9
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        costs = found["costs"]
    except (OSError, ValueError, KeyError):
        return Told(name, why, seconds, {}, 0, 0, 0.0, {}, *peaks, (0.0, 0.0))
    said = found["need"] or {"host": 0, "gpu": 0}
    need = said["host"] / 1e9, said["gpu"] / 1e9
    if found["verdict"] != "verified":
        print(f"{name}: {found['verdict']}: {found['reason']}", flush=True)
        for finding in found["findings"]:
            print(f"  {finding['check']}: {finding['detail'][:300]}", flush=True)
    return Told(
        name,
        found["verdict"],
        seconds,
        dict(costs["seconds"]),
        costs["calls"],
        costs["float64 runs"],
        (costs["bytes sent"] + costs["bytes returned"]) / 1e9,
        {process: peak / 1e9 for process, peak in costs["peak bytes"].items()},
        *peaks,
        need,
    )


if __name__ == "__main__":
    sys.exit(main())
