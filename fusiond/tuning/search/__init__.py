"""Spaces of configs, and the studies that walk them."""
