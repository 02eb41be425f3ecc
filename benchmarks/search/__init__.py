"""How well the search searches: recorded spaces, the study, and its peers."""
