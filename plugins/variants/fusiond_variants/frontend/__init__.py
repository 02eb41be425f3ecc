"""From a job to the variants that it names."""
