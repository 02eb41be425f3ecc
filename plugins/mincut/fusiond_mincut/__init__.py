"""The strategy `mincut`: image pipelines cut into fused blocks by a minimum cut (docs/mincut.md)."""
