"""Image pipelines on the device at hand, beside the paper and beside what users have today."""
