"""Strategies run in child processes, so that a crash of a plugin stays there.

    registry.py   `load()`: the Registry of a program whose strategies are elsewhere
    strategy.py   a strategy as seen from here, each method a request; which line of a file crashes its parser
    planner.py    the pool of children: requests, replacement, two strikes
    processes.py  one child, and the process that forks them, seen from here
    start.py      starting that process, quickly
    zygote.py     the process that has loaded the plugins, and forks the children
    child.py      what a child does
    messages.py   what they say to each other

A strategy is a pure function of its arguments (`fusiond.strategy`), so a child that died is replaced by another one
that is asked again. Files are read, and compilers run, on this side: children only compute.
"""
