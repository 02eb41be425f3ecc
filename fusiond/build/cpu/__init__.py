"""CUDA C++ for the processor: the lowered text, the commands of g++, and the runtime that the result runs on."""
