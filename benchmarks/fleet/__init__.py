"""Many boxes: a job on a Ray cluster (`cluster`), and a fleet with an upstream, simulated (`simulate`)."""
