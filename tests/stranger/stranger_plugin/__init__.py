"""A plugin for fusiond that knows nothing of fusiond but its documentation (docs/plugins.md walks through it)."""
