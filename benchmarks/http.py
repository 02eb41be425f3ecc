"""Look-ups over HTTP, beside a running search on the same store: `python -m benchmarks.http [--records 100000]
[--secs 10] [--clients 4] [--folder DIR]`, JSON on standard output.

The daemon is a real process with its own store; its only worker writes trials all the time (of made-up measurements, so
that no kernel takes the processor). The clients are processes with a connection each, which ask as fast as they are
answered: `spread`, questions all over the records; `hot`, a hundred questions again and again. The file is read once
before, so that the system has it in memory as on a machine that has served for a while (some virtual machines take such
memory away within a minute). Beside them, in the same run and with the same clients: `bare`, a server of uvicorn and
starlette that answers every question with the same document. What counts is the ratio to that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.store import SIZES_PER_NAME, fill
from fusiond.client.client import Client

TRIAL_SECS = 0.1
"""Ten trials a second, more than a search on a GPU writes."""
HOT = 100
SEARCH = "strategy: toy\npair: [a, b]\nsearch: {trials: 1000000}\n"
BARE = """
import json, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
document = json.loads(sys.argv[2])
async def best(request):
    return JSONResponse(document)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen(128)
app = Starlette(routes=[Route("/best", best)])
options = dict(log_config=None, access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio")
uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[listener])
"""


class Connection(HTTPConnection):
    """HTTP over a Unix socket, kept alive."""

    def __init__(self, path: str) -> None:
        super().__init__("fusiond")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--secs", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where to put the store (default: the temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        store = Path(folder) / "fusiond.sqlite"
        names = fill(store, given.records)
        with daemon(store) as path:
            (search,) = begin_search(store, Path(folder))
            document = ask(Connection(path), question(names, 0))
            store.read_bytes()
            found = {kind: figures(path, paths(names, kind), given.clients, given.secs) for kind in ("spread", "hot")}
            with Client(db=store) as client:
                trials = client.show(search).trials
        with bare(Path(folder) / "bare.socket", document) as path:
            found["bare"] = figures(path, paths(names, "hot"), given.clients, given.secs)
    result: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0))},
        "records": given.records,
        "clients": given.clients,
        "trials_meanwhile": trials,
        **found,
        "ratio_spread_to_bare": round(found["spread"]["per_second"] / found["bare"]["per_second"], 2),
        "ratio_hot_to_bare": round(found["hot"]["per_second"] / found["bare"]["per_second"], 2),
    }
    print(json.dumps(result, indent=1))


@contextmanager
def daemon(store: Path) -> Iterator[str]:
    """The daemon of a store, with make-believe measurements."""
    command = [sys.executable, "-m", "fusiond.testing.daemon", str(store), "--trial-secs", str(TRIAL_SECS)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, Client(db=store) as client:
        try:
            path = str(client.socket)
            until_it_listens(path, process)
            yield path
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def bare(path: Path, document: dict[str, Any]) -> Iterator[str]:
    command = [sys.executable, "-c", BARE, str(path), json.dumps(document)]
    with subprocess.Popen(command) as process:
        try:
            until_it_listens(str(path), process)
            yield str(path)
        finally:
            process.send_signal(signal.SIGTERM)


def until_it_listens(path: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            Connection(path).connect()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server ended before it listened")


def begin_search(store: Path, folder: Path) -> tuple[str, ...]:
    job = folder / "search.yaml"
    job.write_text(SEARCH)
    with Client(db=store) as client:
        return client.submit(job)


def question(names: list[str], index: int) -> str:
    name = names[index * 7919 % len(names)]
    return f"/best?pair={quote(name)}&size=a.n%3D{1000 << index % SIZES_PER_NAME}"


def paths(names: list[str], kind: str) -> list[str]:
    count = HOT if kind == "hot" else len(names) * SIZES_PER_NAME
    return [question(names, index) for index in range(count)]


def ask(connection: Connection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    response = connection.getresponse()
    document: dict[str, Any] = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {document}")
    return document


def figures(path: str, questions: list[str], clients: int, secs: float) -> dict[str, float]:
    """Of all clients together; a first second is not counted."""
    with multiprocessing.get_context("fork").Pool(clients) as pool:
        parts = [questions[index::clients] for index in range(clients)]
        times = [each for found in pool.starmap(load, [(path, part, secs) for part in parts]) for each in found]
    times.sort()
    return {
        "per_second": round(len(times) / secs),
        "p50_ms": round(statistics.median(times) * 1e3, 2),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 2),
        "worst_ms": round(times[-1] * 1e3, 2),
    }


def load(path: str, questions: list[str], secs: float) -> list[float]:
    """How long each answer took, in seconds."""
    connection = Connection(path)
    times: list[float] = []
    begun = time.perf_counter()
    index = 0
    while (now := time.perf_counter()) < begun + 1 + secs:
        connection.request("GET", questions[index % len(questions)])
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise SystemExit(f"{questions[index % len(questions)]}: {response.status}")
        if now >= begun + 1:
            times.append(time.perf_counter() - now)
        index += 1
    return times


if __name__ == "__main__":
    main()
