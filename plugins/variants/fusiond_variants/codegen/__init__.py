"""From a variant's own program to one over the reference's arguments."""
