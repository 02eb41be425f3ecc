"""From YAML to the graph of a pipeline."""
