"""From a plan to a Program."""
