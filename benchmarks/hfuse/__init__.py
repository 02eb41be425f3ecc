"""The evaluation of the horizontal fusion paper (Li et al., CGO 2022, figures 7 to 9), on the device at hand.

paper.py      what the paper measured, as data
pairs.py      the 16 pairs, and what is swept in each
static.py     what can be known without a GPU: registers, spills, occupancy, and what finding them out costs
counted.py    what a GPU that is not here would pay, and how full its issue slots can be
measure.py    the sweeps, through the ordinary tuner
page.py       docs/results-hfuse.md
"""
