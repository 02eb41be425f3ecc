"""Legality and worth of fusions."""
