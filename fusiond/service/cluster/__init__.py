"""The devices of a Ray cluster as devices of this daemon.

remote.py    what runs on a device's own box: a supervisor of its child process, with bundles of its own
ray_actors.py  the one home of Ray: actors, the object store, and who is still there
provider.py  all of it as a kind of device (`cluster`), for the tuner and the daemon
"""
