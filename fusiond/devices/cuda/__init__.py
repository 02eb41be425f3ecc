"""NVIDIA's GPUs. In the daemon's process: `provider`. In the child: `executor`, the only importer of PyCUDA.

provider    what is there, what is missing, how a source is built
executor    one GPU's context, its state, loading Programs
loaded      one Program: checked runs and timed samples
gate        holds the stream while Python enqueues
issue       steps onto streams
loop        the same by a loop in C, on the wall clock (`loop_code`)
contexts    those of the devices that a Program is for
memory      buffers between guard zones
arguments   arguments as bytes
driver      the driver through ctypes, for what PyCUDA lacks
nvml        clocks, temperature, who else is there
failures    what the driver's complaints mean
run         `python -m fusiond.devices.cuda.run BUNDLE`
"""
