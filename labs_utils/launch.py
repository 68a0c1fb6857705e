"""`launch`: several workers from a notebook, one result from each rank, and every failure as a sentence.

Workers are modules in processes of their own, so nothing depends on what cells have defined or on whether the notebook
has used CUDA. An agent (`labs_utils.workers.agent`) starts and watches them; whatever happens, all of them end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

from labs_utils.device import usable_cores
from labs_utils.progress import ProgressLine
from labs_utils.workers.rank import RESULTS

PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "NCCL")
GRACE_SECONDS = "3"  # between the agent's SIGTERM to the other ranks and its SIGKILL


class LaunchError(RuntimeError):
    """Why there are no results: one sentence.

    `outcome` is "out of memory", "unsupported", "crash" or "timeout"; `log` is the end of what the rank printed.
    """

    def __init__(self, outcome: str, reason: str, log: str = ""):
        super().__init__(reason)
        self.outcome, self.log = outcome, log


def launch(worker: str, argument: dict, workers: int, *args, **settings) -> list[dict]:
    """Run a worker in so many processes on this machine, and wait for them; arguments are those of `launch_each`.

    Returns:
        What each rank returned, in the order of the ranks.

    Raises:
        LaunchError: one sentence with the first real error. By then every process has ended.
    """
    parts = launch_each(worker, argument, workers, *args, **settings)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


def launch_each(
    worker: str,
    argument: dict,
    workers: int,
    limit_seconds: float = 600,
    port: int = 0,
    show: Callable[[str], None] | None = None,
    threads: int | None = None,
) -> Generator[list[dict], None, list[dict]]:
    """Run a worker in so many processes on this machine: a GPU each, or the CPU where there are fewer GPUs.

    Args:
        worker: a module ("labs_utils.workers.zero"), or the path of a .py file; see `labs_utils.workers.rank.serve`.
        argument: plain data, the same for every rank.
        port: where the ranks meet; 0 lets the operating system choose.
        show: called with a few words as rank 0 gets on, and with "" at the end; default: a `ProgressLine`.
        threads: how many threads each rank computes with on the host; default: they share the cores.

    Yields:
        Parts of the result, as soon as all ranks have left one (`labs_utils.workers.rank.keep`): a list by rank.

    Returns:
        What each rank returned, in the order of the ranks.

    Raises:
        LaunchError: one sentence with the first real error. By then every process has ended.
    """
    refuse_impossible(workers, port)
    refuse_taken(port)
    with tempfile.TemporaryDirectory(prefix="labs-") as folder, Agent(Path(folder), workers, port, threads) as agent:
        kills_before = out_of_memory_kills()
        timed_out = yield from agent.run(worker, argument, limit_seconds, show or ProgressLine())
        answers = [agent.answer(rank) for rank in range(workers)]
        if all("result" in answer for answer in answers):
            return [answer["result"] for answer in answers]
        if timed_out:
            stopped = f"the workers took longer than {limit_seconds:g} seconds and were stopped"
            raise LaunchError("timeout", "; ".join([stopped, *agent.whereabouts()]))
        raise first_error(agent, answers, out_of_memory_kills() > kills_before)


def refuse_impossible(workers: int, port: int) -> None:
    """Raise `LaunchError` for a number of workers or a port that can't be."""
    if type(workers) is not int or workers < 1:
        raise LaunchError("unsupported", f"workers must be a whole number from 1 on, not {workers!r}")
    if type(port) is not int or not 0 <= port < 2**16:
        raise LaunchError("unsupported", f"port must be a whole number from 0 to 65535, not {port!r}")


def refuse_taken(port: int) -> None:
    """Raise `LaunchError` if something else is listening at the port."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            reason = f"port {port} can't be used ({error.strerror.lower()}); leave `port` out, and a free one is found"
            raise LaunchError("crash", reason) from None


class Agent:
    """The agent's process and the folder in which ranks leave their results; on exit nothing of it is left."""

    def __init__(self, folder: Path, workers: int, port: int, threads: int | None = None):
        self._folder, self._workers, self._port, self._threads = folder, workers, port, threads
        self._last_told: dict[int, str] = {}
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
            self._last_told[int(name[5:])] = text
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
            found = json.loads((self._folder / "agent.json").read_text("utf-8"))
            return {int(rank): code for rank, code in found.items()}
        return {}

    def log(self, rank: int | None = None) -> str:
        """The end of what a rank wrote to its standard error; without a rank, the agent."""
        name = "agent.log" if rank is None else f"*/attempt_0/{rank}/stderr.log"
        return "".join(path.read_text("utf-8", errors="replace")[-4000:] for path in self._folder.glob(name))

    def whereabouts(self) -> list[str]:
        """What each rank told last, for those that gave no answer."""
        silent = [rank for rank in range(self._workers) if not self.answer(rank)]
        return [f"rank {rank} was at {self._last_told.get(rank, 'its start')!r}" for rank in silent[:4]]

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
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def first_error(agent: Agent, answers: list[dict], killed_for_memory: bool) -> LaunchError:
    """The error that came first, before those of ranks that only lost their peer."""
    told = sorted((answer for answer in answers if "reason" in answer), key=lambda answer: answer["at"])
    real = [answer for answer in told if not any(words in answer["reason"] for words in PEER_LOST)]
    dead = {rank: code for rank, code in agent.exit_codes().items() if not answers[rank]}
    if dead and not real:
        rank, code = next(iter(dead.items()))
        return death(agent, rank, code, killed_for_memory)
    if told:
        first = (real or told)[0]
        where = f"rank {first['rank']} of {len(answers)}"
        return LaunchError(first["outcome"], f"{where} failed: {first['reason']}", agent.log(first["rank"]))
    silent = [str(rank) for rank, answer in enumerate(answers) if not answer]
    lines = agent.log().strip().splitlines() or ["it said nothing"]
    return LaunchError("crash", f"rank {', '.join(silent)} ended without an answer: {lines[-1][:300]}", agent.log())


def death(agent: Agent, rank: int, code: int, killed_for_memory: bool) -> LaunchError:
    """A rank that ended without an error of its own: by a signal, or before it could begin."""
    if killed_for_memory:
        reason = f"rank {rank} was killed because this machine's memory ran out; take fewer workers or a smaller run"
        return LaunchError("out of memory", reason, agent.log(rank))
    if code < 0:
        name = signal.Signals(-code).name
        return LaunchError("crash", f"rank {rank} was ended by the signal {name}", agent.log(rank))
    lines = agent.log(rank).strip().splitlines() or [f"exit status {code}"]
    return LaunchError("crash", f"rank {rank} ended without an answer: {lines[-1][:300]}", agent.log(rank))


def out_of_memory_kills() -> int:
    """How many processes Linux has killed for want of memory since it started (0 where it doesn't say)."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
