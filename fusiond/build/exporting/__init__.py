"""Export: a folder with which a user's program runs a Program, without fusiond.

One function of any Program, `files.export`; strategies have no part in it.

    layout      who gives each allocation: the caller, the workspace, the plan itself
    cxx         formulas, numbers and names as C++
    header, implementation, parts, steps, adapters     the C++ side, over the CUDA runtime API
    launch      the Python side, over the driver; copied into each export as it is
    readme      README.txt
"""
