"""Real processes: each failure of a rank is one sentence within 15 seconds, and nothing is left of any of them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from uuid import uuid4

import psutil
import pytest
from places import TOY

from labs_utils.device import usable_cores
from labs_utils.workers.launch import LaunchError, launch

WORKER = str(TOY / "workers/scripted.py")
MARK = "LABS_TEST_LAUNCH"
FAILURE_SECONDS = 15  # from a rank's failure to the sentence, on a machine that does other things too
FAILURES = {
    "raises": (["add_up", "fail"], "crash", "rank 1 of 2 failed: ValueError: the batch is empty$"),
    "raises on rank 0": (["fail", "add_up"], "crash", "rank 0 of 2 failed: ValueError: the batch is empty$"),
    "is killed": (["add_up", "die"], "crash", "rank 1 was ended by the signal SIGKILL"),
    "is killed while another waits": (["wait", "die"], "crash", "rank 1 was ended by the signal SIGKILL"),
    "leaves without a word": (["answer", "leave"], "crash", "rank 1 ended without an answer"),
    "asks for too much memory": (["answer", "fill_the_memory"], "out of memory", "rank 1 of 2 failed: .*memory"),
}


def scripted(*ranks, **options):
    return launch(WORKER, {"ranks": ranks}, len(ranks), **options)


def processes_left() -> list[int]:
    """Processes that have inherited this test's mark from an agent that it started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                found.append(process.pid)
    return found


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    monkeypatch.setenv(MARK, uuid4().hex)
    yield
    assert processes_left() == []


@pytest.mark.parametrize(
    "workers, port, reason", [(0, 0, "workers must"), (-1, 0, "workers must"), (1, 70000, "port must")]
)
def test_what_cannot_be_is_refused(workers, port, reason):
    with pytest.raises(LaunchError, match=reason):
        launch(WORKER, {"ranks": []}, workers, port=port)


@pytest.mark.slow
def test_each_rank_returns_its_result_and_the_cores_are_shared():
    told = []
    results = scripted("answer", "answer", show=told.append)
    assert [result["rank"] for result in results] == [0, 1]
    assert [result["threads"] for result in results] == [max(1, usable_cores() // 2)] * 2
    assert told == ["begun", ""]


@pytest.mark.slow
def test_ranks_reach_each_other():
    assert scripted("add_up", "add_up", "add_up") == [{"total": 6}] * 3


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_a_rank_that(case):
    ranks, outcome, sentence = FAILURES[case]
    begun = []
    with pytest.raises(LaunchError, match=sentence) as caught:
        scripted(*ranks, show=lambda text: begun.append(time.monotonic()))
    assert caught.value.outcome == outcome
    assert time.monotonic() - begun[0] < FAILURE_SECONDS


@pytest.mark.slow
def test_a_rank_that_never_answers_is_ended_with_what_it_has_started():
    begin = time.monotonic()
    with pytest.raises(LaunchError, match="10 seconds and were stopped; .*rank 1 was at '(begun|its start)'") as caught:
        scripted("answer", "sleep", limit_seconds=10)
    assert caught.value.outcome == "timeout"
    assert time.monotonic() - begin < FAILURE_SECONDS


@pytest.mark.slow
def test_a_module_that_is_not_there_is_named():
    with pytest.raises(LaunchError, match="rank 0 ended without an answer: .*No module named labs_utils.workers.no"):
        launch("labs_utils.workers.no", {}, 1)


def test_a_port_that_is_taken_is_named_and_none_is_needed():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} can't be used .*; leave `port` out"):
            scripted("answer", port=port)


@pytest.mark.slow
def test_a_port_can_be_used_again_at_once():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    for _ in range(2):
        assert scripted("add_up", port=port) == [{"total": 1}]


@pytest.mark.slow
def test_two_launches_at_once_do_not_meet():
    results = []
    threads = [threading.Thread(target=lambda: results.append(scripted("add_up", "add_up"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[{"total": 3}] * 2] * 2


@pytest.mark.slow
def test_workers_end_when_the_notebook_is_killed():
    code = f"from labs_utils.workers.launch import launch; launch({WORKER!r}, {{'ranks': ['sleep', 'sleep']}}, 2)"
    notebook = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: len(processes_left()) == 6)  # itself, the agent, two ranks and a child of each
    assert len(processes_left()) == 6
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    killed = time.monotonic()
    wait_until(lambda: not processes_left())
    assert time.monotonic() - killed < FAILURE_SECONDS
