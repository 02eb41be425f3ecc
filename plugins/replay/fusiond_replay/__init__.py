"""Spaces that were measured once, replayed: a strategy, a device, and readers of recorded spaces."""
