"""The address of a cluster, or none -> the place where runs are done."""

from __future__ import annotations

import os

from fusewright.errors import BadUsage
from fusewright.suite.process_runner import ThisMachine
from fusewright.suite.runner import Place

# What Ray reads when it is imported: it sends no statistics, and prints no line of its own among
# those of a command, whose standard output may be a report.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def place_at(ray: str | None, jobs: int | None) -> Place:
    """This machine, or the Ray cluster with this address. jobs: runs at once, if that was said.

    Raises BadUsage where Ray is not installed.
    """
    if ray is None:
        return ThisMachine(jobs or 1)
    os.environ.update(QUIET)
    try:
        from fusewright.suite.ray_runner import RayCluster
    except ModuleNotFoundError as error:
        raise BadUsage(
            f"--ray needs the package {error.name}: pip install 'fusewright[ray]'."
        ) from error
    return RayCluster(ray, jobs)
