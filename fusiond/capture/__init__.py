"""What a running CUDA program launches, and what of it is worth asking about.

trace       what a program did: kernels, launches, memory, copies
fatbin      the PTX in a fat binary
libraries   what a program runs under, built by g++: a CUDA runtime without a GPU, and what notes the driver's calls
service     carries out the kernels of a program that runs without a GPU
report      which launches do not need each other, and which of them fusing could hide
documents   kernels and jobs as YAML
"""
