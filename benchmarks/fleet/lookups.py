"""Look-ups over HTTP that a box upstream answers, in one process, from SQLite: one by one, and many in a request.

python -m benchmarks.fleet.lookups [--known 3000] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks.fleet.simulate import answers
from fusiond.exchange import tokens, transfer
from fusiond.exchange.database import Exchange

SIZES = '{"n":5000000}'
EACH = 1500


def ask(port: int, token: str, paths: list[str], secs: list[float]) -> None:
    """One connection, one question after the other."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        for path in paths:
            begun = time.perf_counter()
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
            connection.sendall(head.encode())
            assert b"200" in stream.readline()
            length = 0
            while (line := stream.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            assert len(stream.read(length)) == length > 100
            secs.append(time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--known", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device, families, lines = answers(arguments.known)
    draw = random.Random(0)
    found: dict[str, Any] = {"known": arguments.known, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "fusiond.sqlite"
        token = tokens.new()
        with Exchange.beside(store) as exchange:
            transfer.read(exchange, lines)
            exchange.add_token("benchmark", "read", tokens.digest(token))
        command = [sys.executable, "-m", "fusiond", "serve", "--db", str(store), "--web", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
            assert daemon.stdout is not None
            base = daemon.stdout.readline().partition("/?")[0]
            port = int(base.rpartition(":")[2])
            for connections in (1, 4, 16):
                secs: list[float] = []
                paths = [
                    f"/exchange/answer?family={draw.choice(families)}&device={device}&sizes={quote(SIZES)}"
                    for _ in range(EACH)
                ]
                threads = [
                    threading.Thread(target=ask, args=[port, token, paths[at::connections], secs])
                    for at in range(connections)
                ]
                begun = time.perf_counter()
                for each in threads:
                    each.start()
                for each in threads:
                    each.join()
                wall = time.perf_counter() - begun
                secs.sort()
                found[f"connections_{connections}"] = {
                    "per_sec": round(len(secs) / wall),
                    "p50_ms": round(1e3 * secs[len(secs) // 2], 2),
                    "p99_ms": round(1e3 * secs[int(0.99 * len(secs))], 2),
                }
            questions = [{"family": draw.choice(families), "device": device, "sizes": SIZES} for _ in range(1000)]
            with httpx.Client(headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
                begun = time.perf_counter()
                for _ in range(5):
                    assert all(client.post(f"{base}/exchange/find", json={"questions": questions}).json()["answers"])
                found["a_thousand_in_a_request"] = {"per_sec": round(5000 / (time.perf_counter() - begun))}
            daemon.terminate()
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
