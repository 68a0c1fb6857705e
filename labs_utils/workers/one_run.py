"""A process that measures one run: reads it as JSON from standard input, writes an answer to standard output."""

from __future__ import annotations

import json
import os
import sys

import torch
import transformers.models.llama.modeling_llama  # noqa: F401  imported before the run is known, to be ready for it

from labs_utils.answer import Answer
from labs_utils.run import Run
from labs_utils.training.step import TrainingStep
from labs_utils.workers.peak_and_time import live_answer, measure_on_cpu, measure_on_gpu
from labs_utils.workers.rank import outcome_of


def main() -> None:
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    run = Run.parse(json.load(sys.stdin))
    os.write(answers_to, json.dumps(measure_here(run).to_dict()).encode())


def measure_here(run: Run) -> Answer:
    """The answer, or the named outcome of what went wrong."""
    try:
        if torch.cuda.is_available():
            return measure_on_gpu(TrainingStep(run, "cuda"))
        return measure_on_cpu(TrainingStep(run, "cpu"))
    except (RuntimeError, ImportError, NotImplementedError, KeyError) as error:
        outcome, reason = outcome_of(error)
        return live_answer(run, outcome, {"reason": reason})


if __name__ == "__main__":
    main()
