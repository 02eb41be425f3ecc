"""The phases of tuning one job; `fusiond.tuning.tuner` runs them.

    tuner.py      the phases in their order: parts, probes, baselines, search, finals, answer
    baselines.py  the unfused ways, each tuned with its own knobs
    prior.py      what is known before the search
    search_phase.py  ask, build, check, sample, tell
    finals.py     who is measured again in fresh processes, and who is struck out
    verdict.py    from the log ratios of the finals to `fuse`, `keep` or `undecided`
    answers.py    what the finals mean for the answer of today
    verifying.py  an answer measured again, without a search
    measuring.py  programs to outcomes: build, bundle, check, sample
    bench.py      the outputs that are right, and whether the device itself is well
    contention.py who else computes on it
    counts.py     what both sides of an answer would pay; profiles.py keeps it
    context.py    what every phase needs

The finals are tested in tests/tuning/test_answers.py and test_tuner.py.
"""
