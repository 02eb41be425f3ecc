"""From a schedule to a Program."""
