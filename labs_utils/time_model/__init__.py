"""Seconds of a training step from its operators' sizes and recorded rates."""
