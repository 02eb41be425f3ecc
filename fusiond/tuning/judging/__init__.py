"""Decides whether a kernel is a correct and faster replacement of another one."""
