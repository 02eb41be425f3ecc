"""Launches of a program's own CUDA kernels, recorded and run as one fused launch where there is an answer.

kernels     what carries CUDA source: CuPy's RawKernel, and `fusiond.cuda.kernel`
arguments   what a launch is handed, by what a question and an overlap need to know of it
context     the launches of one `with fusiond.cuda.launch(...)`
groups      launches that come together: asked for once, fused once they are known
group_job   a group as a job of the strategy that fuses kernels
fused       an answer as a launch of a group's arguments
"""
