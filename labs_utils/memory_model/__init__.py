"""Bytes of a training step from sizes alone: autograd, operators, kernels and ZeRO written out."""
