"""Captures the launches of a running CUDA program and turns them into questions.

runner      runs a program so that a trace is written, with `libraries` and `service` where there is no GPU, and with
            `driver_watcher` where there is one
trace       what a program did: kernels, launches, memory, copies
code        a kernel's PTX, from its module (`fatbin`) or from what compiled it (`origins`)
reads_and_writes
            what each event reads and writes, in which part of an allocation (`regions`)
report      which launches do not need each other, and which of them fusing could hide, with counted bounds
documents   a launch as YAML; `picked_kernels` writes kernels and jobs, `draft_filling` the draft of a source
copies      what crosses between host and device, as a graph
"""
