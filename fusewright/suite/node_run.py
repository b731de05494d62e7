"""A command with the texts of its files -> how it ended and what it left, on a node of a cluster.

Ray's worker starts a process that is no part of Ray: it lays the files out in a folder of its own,
does the run with the runner that a suite on one machine has, and hands back what it left. The
worker holds its line; when the worker is gone, the run and the folder are gone, too.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fusewright.common.devices import VISIBLE, gpus
from fusewright.common.package import PACKAGE
from fusewright.suite.process_runner import ProcessRunner
from fusewright.suite.run_end import RunEnd
from fusewright.suite.runner import Command, Work

LEFT = (".log", ".json", ".py")  # what a run leaves, by its suffix
MOST_LOG = 1 << 20  # bytes of a log that are sent back, the last ones
AGAIN_S = 0.5
# What Ray sets for its workers; a run chooses its threads as it does on one machine.
THREADS = "OMP_NUM_THREADS"
START = (
    "import sys; sys.path.append(sys.argv[1]); from fusewright.suite.node_run import main; main()"
)


@dataclass(frozen=True)
class NodeJob:
    """One run for a node. texts: of the command's files, by their absolute paths.  on_gpu: whether
    it has a GPU; else it sees none."""

    work: Work
    command: Command
    texts: Mapping[str, bytes]
    on_gpu: bool


@dataclass(frozen=True)
class Beside:
    """Other files of a folder, by their paths in it, which a problem may read."""

    folder: str
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class NodeResult:
    """How a run ended, and the files that it left, by suffix."""

    end: RunEnd
    left: Mapping[str, bytes]


def run_on_node(job: bytes, *beside: Beside) -> NodeResult | str:
    """What a worker of the cluster is asked; in words, where the process that does it was lost.

    job: a pickled `NodeJob`, which only that process reads.
    """
    environment = {name: value for name, value in os.environ.items() if name != THREADS}
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(PACKAGE.parent)], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with process:
        if process.stdin is None or process.stdout is None:
            return "its process has no pipes"
        with suppress(BrokenPipeError):
            pickle.dump((job, beside), process.stdin)
            process.stdin.flush()
        told = process.stdout.read()
    if not told:
        return f"what did it on the node ended with exit code {process.returncode}"
    result: NodeResult = pickle.loads(told)
    return result


def main() -> None:
    """The process that does the run: a job comes on standard input, the result goes to standard
    output, and nothing else does."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        job, beside = pickle.load(sys.stdin.buffer)
        result = done(pickle.loads(job), beside)
        with suppress(BrokenPipeError):
            pickle.dump(result, answer)


def done(job: NodeJob, beside: tuple[Beside, ...]) -> NodeResult:
    """Do the run in a folder that is gone afterwards; texts that name it name the asker's."""
    if not job.on_gpu:
        os.environ.update({VISIBLE: ""})
    with tempfile.TemporaryDirectory(prefix="fusewright-", ignore_cleanup_errors=True) as name:
        place = Path(name).resolve()
        given = [Path(path) for path in job.texts]
        folders = {folder: place / str(k) for k, folder in enumerate({p.parent for p in given})}
        output = place / "results"
        for other in beside:
            _lay(folders[Path(other.folder)], other.files)
        for path in given:
            _lay(folders[path.parent], {path.name: job.texts[str(path)]})
        files = tuple(folders[path.parent] / path.name for path in given)
        work = replace(job.work, output=output)
        runner = ProcessRunner(work, devices=gpus()[:1] if job.on_gpu else (), preload=())
        threading.Thread(target=_follow, args=[runner], daemon=True).start()
        end = runner.launch(replace(job.command, files=files))
        names = {str(new): str(old) for old, new in folders.items()}
        names[str(output)] = str(job.work.output.absolute())
        stem = output / job.command.name
        left = {suffix: _left(Path(f"{stem}{suffix}"), names) for suffix in LEFT}
        return NodeResult(_told(end, names), {s: text for s, text in left.items() if text})


def _lay(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def _left(path: Path, names: Mapping[str, str]) -> bytes:
    """The text of a file, with the asker's names of folders; b"" where there is none."""
    try:
        text = path.read_bytes()
    except OSError:
        return b""
    for here, there in names.items():
        name = json.dumps(there)[1:-1] if path.suffix == ".json" else there
        text = text.replace(here.encode(), name.encode())
    return text[-MOST_LOG:] if path.suffix == ".log" else text


def _told(end: RunEnd, names: Mapping[str, str]) -> RunEnd:
    """The same with the asker's names of folders."""
    reason, report = end.reason, json.dumps(end.report)
    for here, there in names.items():
        reason = reason.replace(here, there)
        report = report.replace(here, json.dumps(there)[1:-1])
    return replace(end, reason=reason, report=json.loads(report))


def _follow(runner: ProcessRunner) -> None:
    """End the run when the worker that asked for it is gone, however that happened."""
    sys.stdin.buffer.read()
    while True:  # a run may be about to start
        runner.stop()
        time.sleep(AGAIN_S)
