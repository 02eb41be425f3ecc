"""fusiond for others: the daemon, its pages, clients in programs, and boxes that work together."""
