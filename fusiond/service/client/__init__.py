"""The client of the daemon and of the store, blocking and asynchronous."""
