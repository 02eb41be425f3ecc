"""The strategy `mincut`: image pipelines cut into fused blocks by a minimum cut.

Not there yet: this package registers nothing.
"""
