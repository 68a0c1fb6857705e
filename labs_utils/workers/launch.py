"""`launch`: several workers from a notebook, one result from each rank, and every failure as a sentence.

Workers are modules in processes of their own, so nothing depends on what cells have defined or on whether the notebook
has used CUDA. An agent (`labs_utils.workers.agent`) starts and watches them; whatever happens, all of them end.
"""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

from labs_utils.figures.display import ProgressLine
from labs_utils.workers.launched_agent import Agent

PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "NCCL")


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


def first_error(agent: Agent, answers: list[dict], killed_for_memory: bool) -> LaunchError:
    """The error that came first, before those of ranks that only lost their peer."""
    errors = sorted((answer for answer in answers if "reason" in answer), key=lambda answer: answer["at"])
    real = [answer for answer in errors if not any(words in answer["reason"] for words in PEER_LOST)]
    dead = {rank: code for rank, code in agent.exit_codes().items() if not answers[rank]}
    if dead and not real:
        rank, code = next(iter(dead.items()))
        return death(agent, rank, code, killed_for_memory)
    if errors:
        first = (real or errors)[0]
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
