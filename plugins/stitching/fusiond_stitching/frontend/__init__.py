"""From HLO text to the graph."""
