"""The daemon: `serve` claims jobs from the store and tunes them, a worker thread a device, and answers on a socket."""
