"""From what users write to the graph."""
