"""The agent of `launch` as its parent sees it: a process, and the folder in which its ranks leave what they have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

from labs_utils.device import usable_cores
from labs_utils.workers.rank import RESULTS

GRACE_SECONDS = "3"  # between the agent's SIGTERM to the other ranks and its SIGKILL


class Agent:
    """The agent's process and the folder in which ranks leave their results; on exit nothing of it is left."""

    def __init__(self, folder: Path, workers: int, port: int, threads: int | None = None):
        self._folder, self._workers, self._port, self._threads = folder, workers, port, threads
        self._last_progress: dict[int, str] = {}
        self._process: subprocess.Popen | None = None
        self._timed_out, self._handed_on = False, 0

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error) -> None:
        self.stop()
        if self._process is not None:
            self._process.stdout.close()

    def run(
        self, worker: str, argument: dict, limit_seconds: float, show: Callable[[str], None]
    ) -> Generator[list[dict], None, bool]:
        """Wait until every process has ended; yields parts as they come, returns whether it took longer than that."""
        self._start(worker, argument)
        limit = threading.Timer(limit_seconds, self._time_out)
        limit.start()
        try:
            for line in self._process.stdout:
                self._hear(line.decode(errors="replace").strip(), show)
                yield from self._new_parts()
            self._process.wait()
            yield from self._new_parts()
            return self._timed_out
        finally:
            limit.cancel()
            show("")

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()

    def _start(self, worker: str, argument: dict) -> None:
        argument_file, settings_file = self._folder / "argument.json", self._folder / "settings.json"
        argument_file.write_text(json.dumps(argument), "utf-8")
        module = [worker] if worker.endswith(".py") else ["-m", worker]
        config = {"workers": self._workers, "port": self._port}
        settings_file.write_text(json.dumps({"config": config, "command": [*module, str(argument_file)]}), "utf-8")
        with open(self._folder / "agent.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "labs_utils.workers.agent", str(settings_file)],
                stdin=subprocess.PIPE,  # as long as it is open, this process lives
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(self._folder, self._workers, self._threads),
                start_new_session=True,
            )

    def _hear(self, line: str, show: Callable[[str], None]) -> None:
        """Take in a line "rank R: text"."""
        name, _, text = line.partition(": ")
        if name.startswith("rank ") and name[5:].isdigit():
            self._last_progress[int(name[5:])] = text
            if name == "rank 0":
                show(text)

    def _new_parts(self) -> Iterator[list[dict]]:
        """The parts that all ranks have left since this was asked last."""
        parts = [self.kept(rank) for rank in range(self._workers)]
        for part in list(zip(*parts, strict=False))[self._handed_on :]:
            self._handed_on += 1
            yield list(part)

    def answer(self, rank: int) -> dict:
        """What a rank left: its result, or its error; nothing if it died."""
        try:
            return json.loads((self._folder / f"{rank}.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}

    def kept(self, rank: int) -> list[dict]:
        """The parts of its result that a rank has left."""
        with suppress(FileNotFoundError):
            lines = (self._folder / f"{rank}.kept").read_text("utf-8").splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def exit_codes(self) -> dict[int, int]:
        """How ranks ended that failed, those that the agent had to end last."""
        with suppress(FileNotFoundError):
            codes = json.loads((self._folder / "agent.json").read_text("utf-8"))
            return {int(rank): code for rank, code in codes.items()}
        return {}

    def log(self, rank: int | None = None) -> str:
        """The end of what a rank wrote to its standard error; without a rank, the agent."""
        name = "agent.log" if rank is None else f"*/attempt_0/{rank}/stderr.log"
        return "".join(path.read_text("utf-8", errors="replace")[-4000:] for path in self._folder.glob(name))

    def whereabouts(self) -> list[str]:
        """What the ranks without an answer did last: the first four, a few words each."""
        silent = [rank for rank in range(self._workers) if not self.answer(rank)]
        return [f"rank {rank} was at {self._last_progress.get(rank, 'its start')!r}" for rank in silent[:4]]

    def stop(self) -> None:
        """End the agent, its ranks and whatever they have started."""
        if self._process is None:
            return
        for process in family(self._process.pid):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def worker_environment(folder: Path, workers: int, threads: int | None = None) -> dict[str, str]:
    """This process's environment, with what ranks on one machine need.

    torchrun gives each rank one thread, which makes an offloaded optimizer many times slower: here they share cores.
    Gloo looks its address up by the machine's name, which not every machine can; the loopback is always there.
    """
    environment = {
        **os.environ,
        RESULTS: str(folder),
        "OMP_NUM_THREADS": str(threads or max(1, usable_cores() // workers)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": GRACE_SECONDS,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment
