"""Documents and values that users write beside code, and the data in buffers."""
