"""What else does the same work today, measured in the same pairs as ours.

A rival is a `fusiond.devices.base.Loaded`: other kernels, or our own ones issued in another way. So it is sampled by
the same `sample_pair`, behind the same gate and under the same rules as every Program. Each runs in a child process of
its own (`child`), in the device's primary context, which CUDA libraries share. A rival that cannot be measured is a row
with the reason.

    base        what a rival is
    asking      rows of rivals: asks the children, and reads what there is
    child       one rival beside one bundle
    called      a function of a framework's arrays as a Loaded
    frameworks  NumPy, CuPy, PyTorch, JAX
    ways        other ways to issue our kernels: priorities, green contexts, programmatic dependent launch
    hfuse, mincut               the rivals of a strategy
    named       rivals that a benchmark measures by means of its own
"""
