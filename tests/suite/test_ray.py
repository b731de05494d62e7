"""A suite and an arena on a cluster of several nodes, which this file starts on one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusewright.cli import main
from fusewright.errors import BadUsage
from tests.support.folders import PROBLEMS, ROOT
from tests.support.ray_stand_in import stand_in as stand_in_for_commands

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

from fusewright.suite import ray_runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
real_run = main.one_run
STORE_BYTES = 80 << 20
# That a node is dead is seen after about two seconds, not after ten.
SEEN_SOON = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
OURS = ("raylet", "gcs_server", "ray::", "fusewright.suite.node_run")


def ray_processes() -> set[int]:
    found = set()
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(name in words for name in OURS):
            found.add(process.info["pid"])
    return found


def wait_until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head that runs nothing, and two nodes with a processor each."""
    before = ray_processes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = Cluster()
        try:
            started.add_node(num_cpus=0, object_store_memory=STORE_BYTES, include_dashboard=False)
            for _ in range(2):
                started.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
            yield started
        finally:
            started.shutdown()
    wait_until(lambda: not ray_processes() - before, "all of Ray's processes have ended")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "one_run", stand_in_for_commands)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a cluster listens is known here; others find out, in a process of its own."""
    monkeypatch.setattr(ray_runner, "_reach", lambda address: None)


def folder(root: Path, **behaviours: str) -> Path:
    """Problems; what each does."""
    place = root / "problems"
    place.mkdir(exist_ok=True)
    for name, behaviour in behaviours.items():
        (place / f"{name}.py").write_text(f"# {root} {behaviour}\n# {name}\n")
    return place


def words(root: Path, address: str, *more: str) -> list[str]:
    report = ["--report", str(root / "r.json")]
    own = ["suite", str(root / "problems"), "--output", str(root / "out"), "--ray", address]
    return [*own, *report, *more]


def run(root: Path, address: str, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the rows."""
    code = ended(words(root, address, *more))
    rows = json.loads((root / "r.json").read_bytes())["rows"]
    return code, {row["name"]: row for row in rows}


def ended(arguments: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main.app(arguments, prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code


def journal(root: Path, event: str = "begun") -> list[list[str]]:
    """Name, process and GPU of each such event."""
    path = root / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1:] for line in lines if line.split()[0] == event]


def times_begun(root: Path) -> Counter[str]:
    return Counter(name.removeprefix("optimize-") for name, *_ in journal(root))


def kept(root: Path) -> int:
    with sqlite3.connect(root / "out" / "results.sqlite") as store:
        (count,) = store.execute("SELECT count(*) FROM results").fetchone()
    return int(count)


@pytest.mark.usefixtures("known")
def test_rows_are_those_of_one_machine(tmp_path: Path, cluster: Cluster) -> None:
    place = folder(tmp_path, reads="reads", crashes="crashes")
    (place / "tables").mkdir()
    (place / "tables" / "one.txt").write_text("what stands beside the problem")
    code, rows = run(tmp_path, cluster.address, "--target", "cpu", "--no-timing")
    assert code == 3
    found = {name: (row["verdict"], row["end"]) for name, row in rows.items()}
    assert found == {"reads": ("verified", ""), "crashes": ("not-verified", "crashed")}
    assert rows["reads"]["reason"] == "what stands beside the problem"
    assert "SIGSEGV" in rows["crashes"]["reason"]
    assert {row["node"] for row in rows.values()} == {os.uname().nodename}
    assert str(os.cpu_count()) in rows["reads"]["device"]
    assert (tmp_path / "out" / "reads.py").read_text() == f"# from {place / 'reads.py'}\n"
    assert str(place / "crashes.py") in (tmp_path / "out" / "crashes.log").read_text()
    assert times_begun(tmp_path) == {"reads": 1, "crashes": 1}, "a crash is a result"
    assert run(tmp_path, cluster.address, "--target", "cpu", "--no-timing", "--resume")[1] == rows
    assert sum(times_begun(tmp_path).values()) == 2, "resumed"


def test_a_killed_worker_is_replaced(tmp_path: Path, cluster: Cluster) -> None:
    """And of that nothing is said where the report goes."""
    folder(tmp_path, kills="kills", good="good")
    suite = start(words(tmp_path, cluster.address, "--target", "cpu", "--json"))
    said, more = suite.communicate(timeout=60)
    assert (suite.returncode, more) == (0, b"")
    rows = {row["name"]: row for row in json.loads(said)["rows"]}
    assert rows["kills"]["ratios"]["eager"]["median"] == 2.0
    assert times_begun(tmp_path) == {"kills": 2, "good": 1}
    assert len(journal(tmp_path, "ended")) == 2
    assert kept(tmp_path) == 2
    first, _ = (pid for name, pid, _ in journal(tmp_path) if name == "optimize-kills")
    wait_until(lambda: not running(int(first)), "its run is gone, too")


def start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """A suite that an interrupt ends, also where the tests are a shell's background job."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"import sys; sys.path.append({str(ROOT)!r}); from fusewright.cli import main; "
        "from tests.support.ray_stand_in import stand_in; main.one_run = stand_in; main.main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.usefixtures("known")
def test_a_lost_node_loses_only_what_ran_there(tmp_path: Path, cluster: Cluster) -> None:
    folder(tmp_path, p0="held", p1="held", p2="held")
    lost = next(node for node in cluster.worker_nodes)

    def lose() -> None:
        wait_until(lambda: len(journal(tmp_path)) == 2, "both nodes have a run")
        pids = [int(pid) for _, pid, _ in journal(tmp_path)]
        cluster.remove_node(lost, allow_graceful=False)
        wait_until(lambda: sum(map(running, pids)) == 1, "the run of the lost node is gone")
        (tmp_path / "go").touch()

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        code, rows = run(tmp_path, cluster.address, "--target", "cpu", "--no-timing")
    finally:
        thread.join()
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    assert code == 0
    assert {row["verdict"] for row in rows.values()} == {"verified"}
    begun = times_begun(tmp_path)
    assert sorted(begun.values()) == [1, 1, 2]
    again = next(name for name, times in begun.items() if times == 2)
    assert again in [name.removeprefix("optimize-") for name, *_ in journal(tmp_path)[:2]]
    assert Counter(name for name, *_ in journal(tmp_path, "ended")).most_common(1)[0][1] == 1
    assert kept(tmp_path) == 3


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("known")
def test_an_interrupt_ends_all_and_the_rest_is_resumed(tmp_path: Path, cluster: Cluster) -> None:
    folder(tmp_path, a="good", b="held", c="held")
    arguments = words(tmp_path, cluster.address, "--target", "cpu", "--no-timing")
    suite = start(arguments)
    wait_until(
        lambda: len(journal(tmp_path)) == 3 or suite.poll() is not None,
        "one is done and two are at hand",
    )
    assert suite.poll() is None, suite.communicate()
    suite.send_signal(signal.SIGINT)
    assert suite.wait(30) == 130
    pids = [int(pid) for name, pid, _ in journal(tmp_path) if name != "optimize-a"]
    wait_until(lambda: not any(map(running, pids)), "what was running is ended")
    (tmp_path / "go").touch()
    code, rows = run(tmp_path, cluster.address, "--target", "cpu", "--no-timing", "--resume")
    assert (code, sorted(rows)) == (0, ["a", "b", "c"])
    assert times_begun(tmp_path) == {"a": 1, "b": 2, "c": 2}


@pytest.mark.usefixtures("known")
def test_an_arena(tmp_path: Path, cluster: Cluster) -> None:
    folder(tmp_path, norm="good")
    for name in ("ann", "bob"):
        path = tmp_path / "candidates" / "norm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {tmp_path} good\n# {name}\n")
    arguments = ["arena", str(tmp_path / "problems"), str(tmp_path / "candidates"), "--ray"]
    arguments += [cluster.address, "--output", str(tmp_path / "out"), "--device", "cpu"]
    for _ in range(2):
        assert ended([*arguments, "--report", str(tmp_path / "r.json")]) == 0
        rows = json.loads((tmp_path / "r.json").read_bytes())["rows"]
        assert [(row["entrant"], row["place"]) for row in rows] == [("ann", 1), ("bob", 1)]
        assert {row["node"] for row in rows} == {os.uname().nodename}
        assert sorted(name for name, *_ in journal(tmp_path)) == [
            "bench-bob", "judge-ann", "judge-bob",
        ]  # fmt: skip


@pytest.mark.usefixtures("known")
def test_each_run_on_a_gpu_has_one(tmp_path: Path, cluster: Cluster) -> None:
    """Two that the node says it has: which of them a run sees is Ray's to say."""
    node = cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=STORE_BYTES)
    try:
        pairs_on_gpus(tmp_path, cluster, ["--target", "cuda"])
    finally:
        cluster.remove_node(node)


def pairs_on_gpus(root: Path, cluster: Cluster, target: Sequence[str]) -> None:
    folder(root, p0="held", p1="held")

    def let_go() -> None:
        wait_until(lambda: len(journal(root)) == 2, "both are at hand")
        (root / "go").touch()

    thread = threading.Thread(target=let_go)
    thread.start()
    code, rows = run(root, cluster.address, *target)
    thread.join()
    assert code == 0
    assert sorted(gpu for *_, gpu in journal(root)) == ["0", "1"]
    assert len({row["device"] for row in rows.values()}) == 1


@pytest.mark.gpu
def test_two_gpus_of_one_host(tmp_path: Path, cluster: Cluster) -> None:
    """The whole thing: each problem is compiled, judged and timed on a GPU of its own."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    node = cluster.add_node(num_gpus=2, num_cpus=8, object_store_memory=STORE_BYTES)
    try:
        pairs_on_gpus(tmp_path, cluster, ["--target", "cuda"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(main, "one_run", real_run)
            for name in ("q0", "q1"):
                text = (PROBLEMS / "linear_relu.py").read_text()
                (tmp_path / "problems" / f"{name}.py").write_text(f"{text}\n# {name}\n")
            for name in ("p0", "p1"):
                (tmp_path / "problems" / f"{name}.py").unlink()
            code, rows = run(tmp_path, cluster.address, "--target", "cuda")
    finally:
        cluster.remove_node(node)
    assert code == 0, {name: row["reason"] for name, row in rows.items()}
    assert {row["device"] for row in rows.values()} == {torch.cuda.get_device_name(0)}
    assert all(row["times"] for row in rows.values())


USAGE = {
    "auto": "give HOST:PORT",
    "ray://localhost:10001": "give HOST:PORT",
    "localhost:1": "nothing answers there",
}


@pytest.mark.parametrize("address", USAGE)
def test_an_address_that_is_none(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, good="good")
    assert ended(words(tmp_path, address)) == 2
    assert USAGE[address] in capsys.readouterr().err


def test_who_listens_is_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_runner, "ANSWER_S", 1.0)
    folder(tmp_path, good="good")
    with socket.create_server(("localhost", 0)) as server:
        assert ended(words(tmp_path, f"localhost:{server.getsockname()[1]}")) == 2
    assert "no head of a Ray cluster" in capsys.readouterr().err


@pytest.mark.usefixtures("known")
def test_a_cluster_that_does_not_fit(
    tmp_path: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder(tmp_path, good="good")
    assert ended(words(tmp_path, cluster.address, "--target", "cuda")) == 2
    assert "no node of the cluster has a GPU" in capsys.readouterr().err
    found = ray_runner.own_versions()
    monkeypatch.setattr(ray_runner, "own_versions", lambda: replace(found, torch="1.0"))
    assert ended(words(tmp_path, cluster.address)) == 2
    said = capsys.readouterr().err
    assert f"{os.uname().nodename} has PyTorch {found.torch}, not 1.0" in said
    assert not journal(tmp_path)


def test_files_beside_problems_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path, good="good")
    for name in ("_helper.py", "table.txt", ".hidden", "results/old.json"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("x" * 100)
    sent = ray_runner.other_files(place, place / "results")
    assert sorted(sent) == ["_helper.py", "table.txt"]
    monkeypatch.setattr(ray_runner, "MOST_BESIDE", 150)
    with pytest.raises(BadUsage, match="which is the most that is sent"):
        ray_runner.other_files(place, place / "results")
