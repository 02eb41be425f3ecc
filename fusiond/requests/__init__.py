"""Jobs: read, named, planned, and asked for."""
