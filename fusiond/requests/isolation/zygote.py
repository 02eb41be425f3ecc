"""The process that has loaded the plugins, and forks a child whenever it is asked for one: in milliseconds, and never
with the threads or the open files of the program that wants it. `python -m fusiond.requests.isolation.zygote SOCKET
LIMITS`, or a fork of a command that has done nothing yet (`start.py`).

On standard output it says which plugin it loads (so that one whose import kills it is known), then what they
registered. Then, over the socket:

    to it       b"hfuse mincut" first, where it is to be told what to load: empty for everything
                b"fork N" and a descriptor: the child's connection     b"kill N"
    from it     b"pid N PID"    b"end N STATUS", STATUS as that of `subprocess`: -9 for SIGKILL

It runs no strategy itself and has one thread, so forking it is safe. When its socket closes, its children are killed
and it ends; when it is killed, the kernel kills them.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pickle
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from typing import BinaryIO

from fusiond.requests.isolation import child
from fusiond.requests.isolation.messages import ChildLimits, Described, Description
from fusiond.requests.registry import Registry

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    limits = ChildLimits(secs=float(arguments[1]), memory_bytes=int(arguments[2]), stack_bytes=int(arguments[3]))
    without = frozenset(arguments[6:])
    only = control.recv(1 << 16).decode().split() if arguments[5] else []
    # What a plugin prints while it is loaded must not get between our lines.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        registry = loaded(arguments[4], without, functools.partial(_say, out), only)
        out.write(b"ready\n" + pickle.dumps(described(registry)))
    gc.freeze()  # else a collection in a child copies every page of what is loaded
    libc = ctypes.CDLL(None)
    _serve(control, functools.partial(_become_child, control, registry, limits, libc, os.getpid()))
    return 0


def _say(out: BinaryIO, name: str) -> None:
    out.write(f"loading {name}\n".encode())
    out.flush()


def loaded(source: str, without: frozenset[str], say: Callable[[str], None], only: Collection[str] = ()) -> Registry:
    """The registry that a function `module:name` makes; of the entry points, without some, where it is empty."""
    if not source:
        return Registry.load(without=without, before=say, only=only)
    module, _, name = source.partition(":")
    say(module)
    registry: Registry = getattr(importlib.import_module(module), name)()
    return registry


def described(registry: Registry) -> Description:
    return Description(
        strategies=tuple(
            Described(
                name=each.name,
                version=each.version,
                job_keys=tuple(each.job_keys),
                wrong_versions=tuple(each.wrong_versions),
                names=dict(each.names),
                drafts=tuple(each.drafts),
                orders=tuple(each.orders),
                documents={kind: dict(schema) for kind, schema in each.documents.items()},
            )
            for each in registry.strategies.values()
        ),
        states=tuple(registry.states),
        catalogue=dict(registry.catalogue),
        listens=registry.listens,
    )


def _serve(control: socket.socket, become_child: Callable[[int], None]) -> None:
    running: dict[int, tuple[int, int]] = {}
    """A child's number -> its process, and a descriptor that becomes readable when it ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    pid, _ = running.pop(key.data)
                    _kill_group(pid)  # what it may have started
                    _, status = os.waitpid(pid, 0)
                    control.send(f"end {key.data} {os.waitstatus_to_exitcode(status)}".encode())
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
                if not message:
                    for pid, _ in running.values():
                        _kill_group(pid)
                    return
                word, number = message.split()
                if word == b"kill" and int(number) in running:
                    _kill_group(running[int(number)][0])
                elif word == b"fork":
                    pid = os.fork()
                    if pid == 0:
                        become_child(descriptors[0])
                    os.close(descriptors[0])
                    control.send(f"pid {int(number)} {pid}".encode())
                    running[int(number)] = pid, os.pidfd_open(pid)
                    selector.register(running[int(number)][1], selectors.EVENT_READ, int(number))


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the group may not be there yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become_child(
    control: socket.socket, registry: Registry, limits: ChildLimits, libc: ctypes.CDLL, parent: int, descriptor: int
) -> None:
    """Never returns: the child of a fork must not run what its parent would do next."""
    status = 1
    try:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before we could say so
            return
        os.setpgid(0, 0)
        control.close()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        allowed = limits.memory_bytes if most == resource.RLIM_INFINITY else min(limits.memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
        child.serve(Connection(descriptor), registry, stack_bytes=limits.stack_bytes)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
