"""Lab 02, activation checkpointing: held against gradients without it, and against tracked real steps."""

from labs_utils.exercises.lab02 import cheapest_policy, checkpoint, policy_bytes, segment_layers

EXERCISES = tuple(module.EXERCISE for module in (policy_bytes, cheapest_policy, segment_layers, checkpoint))
