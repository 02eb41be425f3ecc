"""Kernels that other people wrote, launched as their own host code launches them, fused as PTX.

runtime/ stands in for libcudart while such a program runs; `captures` keeps a launch of it, `described` gives it a
YAML, `fusing` asks what hfuse makes of each and of pairs, `interpreted` runs both forms.
"""
