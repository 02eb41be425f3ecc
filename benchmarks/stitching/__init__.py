"""The evaluation of FusionStitching (Long et al., 2018, section 6), on eight modules that jax lowers.

paper.py      what the paper measured, as data
modules.py    the eight modules, the large ones, and the plans that are compared
generate.py   modules of any size
static.py     kernel counts, bytes, shared memory, planning times: no device
measure.py    whole and fusable times on a device
page.py       docs/results-stitching.md from what is kept
"""
