"""A worker that does what its argument says, by rank: the name of one of the functions below."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from labs_utils.workers.rank import serve


def work(argument, progress):
    rank = int(os.environ["RANK"])
    progress("begun")
    return ACTIONS[argument["ranks"][rank]](rank)


def answer(rank):
    return {"rank": rank, "threads": torch.get_num_threads(), "port": os.environ["MASTER_PORT"]}


def add_up(rank):
    dist.init_process_group("gloo")
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    return {"total": total.item()}


def fail(rank):
    dist.init_process_group("gloo")
    raise ValueError("the batch is empty\nand a second line")


def fill_the_memory(rank):
    return torch.empty(2**60).sum().item()


def die(rank):
    dist.init_process_group("gloo")
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(rank):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", __file__])  # ranks may have children too
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def wait(rank):
    dist.init_process_group("gloo")
    time.sleep(1000)


def leave(rank):
    os._exit(0)


ACTIONS = {function.__name__: function for function in (answer, add_up, fail, fill_the_memory, die, sleep, wait, leave)}

if __name__ == "__main__":
    serve(work)
