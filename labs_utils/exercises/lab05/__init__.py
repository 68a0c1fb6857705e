"""Lab 05, ZeRO-Offload: held against torch's AdamW, DeepSpeed's own copies, and steps that are played out."""

from labs_utils.exercises.lab05 import cpu_offloaded_adam, fewest_micro_steps, offload_traffic, offloaded_seconds

EXERCISES = tuple(
    module.EXERCISE for module in (cpu_offloaded_adam, offload_traffic, offloaded_seconds, fewest_micro_steps)
)
