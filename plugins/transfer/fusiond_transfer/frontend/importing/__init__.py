"""Graphs drafted from programs that exist: what a program does not say stays `"?"`."""
