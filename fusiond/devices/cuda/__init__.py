"""NVIDIA's GPUs. In the daemon's process: `provider`. In the child: `executor`, the only importer of PyCUDA.

    provider   what is there, what is missing, how a source is built        driver     the driver through ctypes
    executor   one GPU's context, its state, loading Programs               nvml       clocks, temperature, who else is there
    loaded     one Program: checked runs and timed samples                  gate       holds the stream while Python enqueues
    issue      steps onto streams                                           loop       the same by a C loop, on the wall clock
    memory     buffers between guard zones                                  arguments  arguments as bytes
    run        `python -m fusiond.devices.cuda.run BUNDLE`                  failures   what the driver's complaints mean
"""
