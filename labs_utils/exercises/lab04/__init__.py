"""Lab 04, ZeRO stages: held against torch's AdamW, and against what DeepSpeed itself holds and sends on a rank."""

from labs_utils.exercises.lab04 import lowest_stage, rank_bytes, step_traffic, zero1_step

EXERCISES = tuple(module.EXERCISE for module in (zero1_step, rank_bytes, step_traffic, lowest_stage))
