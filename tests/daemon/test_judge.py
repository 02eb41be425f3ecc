"""POST /judge over the real socket, with a stand-in for the command that judges."""

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fusiond.model.errors import DaemonError, DeviceError, RequestError
from fusiond.service.client.aio import AsyncClient
from fusiond.service.client.client import Client
from fusiond.service.daemon import judge
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.judge import Docket, JudgeRequest, kernel_texts
from fusiond.service.daemon.service import Service
from fusiond.store.database import Store
from fusiond.testing import daemon

COMMAND = (sys.executable, str(Path(__file__).with_name("judge_command.py")))
Judging = Callable[..., AbstractContextManager[tuple[Service, Client]]]


@pytest.fixture
def judging(store: Store, service_of: Callable[..., Any]) -> Judging:
    """`with judging(judge_mb=...) as (service, client)`."""

    def made(**config: Any) -> AbstractContextManager[tuple[Service, Client]]:
        work = dataclasses.replace(daemon.work(store, 0.01), judge=COMMAND)
        found: AbstractContextManager[tuple[Service, Client]] = service_of(
            store, work=work, config=DaemonConfig(poll_secs=0.05, **config)
        )
        return found

    return made


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / f"{text.replace(' ', '-').replace('/', '')[:50]}.yaml"
        path.write_text(text + "\n")
        return path

    return write


def texts(word: str, **files: str) -> dict[str, Any]:
    return {"yaml": f"{word}\n", "files": files}


def http(client: Client) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(client.socket))
    return httpx.Client(transport=transport, base_url="http://fusiond", timeout=60)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)


def counted(service: Service) -> dict[str, float]:
    lines = [each for each in service.metrics.text().decode().splitlines() if each.startswith("fusiond_judged_total{")]
    return {each.split('"')[1]: float(each.split()[-1]) for each in lines}


def gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def test_right_and_wrong_are_rulings_alike(judging: Judging, kernel: Callable[[str], Path]) -> None:
    with judging() as (service, client):
        found = client.judge(kernel("right"), str(kernel("right")), device="cpu", trials=7, timeout_secs=9)
        assert (found.right, found.speedup, found.ci95, found.hints) == (True, 1.5, (1.4, 1.6), ("coalesce",))
        options = found.document["candidate"]["options"]
        assert options == ["--json", "--device=cpu", "--timeout=4.5", "--trials=7"]
        wrong = client.judge(kernel("right"), kernel("wrong"))
        assert (wrong.right, wrong.ci95) == (False, None)
        assert wrong.problem == f"y[3] is 1, not 2 ({kernel('wrong')})"
        assert wrong.document["candidate"]["options"] == ["--json", "--device=auto", "--timeout=60"]
        assert counted(service) == {"right": 1, "wrong": 1}


def test_texts_are_files_for_as_long_as_it_takes(
    judging: Judging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path))  # the session's is shared with other processes of tests
    with judging() as (_, client):
        candidate = {"yaml": "wrong\n", "files": {"a.cu": "// é\n", "sub/b.h": "1"}}
        found = client.judge(texts("right"), candidate)
    assert found.problem == "y[3] is 1, not 2 (candidate/candidate.yaml)"  # and not where that lay
    beside = found.document["candidate"]["beside"]
    assert beside == {"candidate.yaml": "wrong\n", "a.cu": "// é\n", "sub/b.h": "1"}
    assert found.document["reference"]["text"] == "right\n"
    assert (tmp_path / "work").is_dir()
    assert not [*(tmp_path / "work").glob("judge*")]


def test_a_process_is_ready_for_the_next_one(judging: Judging) -> None:
    with judging() as (service, client):
        assert client.judge(texts("right"), texts("right")).right
        until(lambda: len(service.docket._spares) == 1)
        spare = service.docket._spares[0].pid
        assert client.judge(texts("right"), texts("right")).document["candidate"]["pid"] == spare
        until(lambda: len(service.docket._spares) == 1)
        service.docket._spares[0].kill()
        assert client.judge(texts("right"), texts("right")).right
        until(lambda: len(service.docket._spares) == 1)
        spare = service.docket._spares[0].pid
    assert gone(spare)


def test_an_asynchronous_client_asks_for_several(judging: Judging) -> None:
    async def ask(client: Client) -> list[bool]:
        async with AsyncClient(client.socket, client.db) as own:
            words = ["right", "wrong", "right"]
            return [each.right for each in await asyncio.gather(*(own.judge(texts("right"), texts(w)) for w in words))]

    with judging() as (_, client):
        assert asyncio.run(ask(client)) == [True, False, True]


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("bad", RequestError, "^candidate/candidate.yaml:1: is no kernel$"),
        ("device", DeviceError, "^no such device$"),
        ("crash", DaemonError, "the judge ended with 70: it fell over"),
        ("silent", DaemonError, "the judge ended with 0"),
        ("busy", DaemonError, "auto is not to be had: cuda:0: waiting for pid 4711"),
    ],
)
def test_what_is_no_ruling_is_an_error(judging: Judging, word: str, kind: type[Exception], says: str) -> None:
    with judging() as (_, client), pytest.raises(kind, match=says):
        client.judge(texts("right"), texts(word), timeout_secs=1 if word == "busy" else 20)


@pytest.fixture(scope="module")
def shared(service_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with Store.open(tmp_path_factory.mktemp("judge") / "fusiond.sqlite") as store:
        work = dataclasses.replace(daemon.work(store, 0.01), judge=COMMAND)
        with service_of(store, work=work) as (_, client), http(client) as found:
            yield found


@pytest.mark.parametrize("name", ["a", "a.cu", "sub/x-1_2.h", "..a", "a..b/c", "reference.yaml"])
def test_names_that_stay_in_their_folder(name: str) -> None:
    assert kernel_texts({"yaml": "x", "files": {name: "y"}}, where="candidate").files == {
        name: "y",
        "candidate.yaml": "x",
    }


def test_what_does_not_end_is_wrong_and_leaves_nobody_behind(judging: Judging, tmp_path: Path) -> None:
    with judging() as (_, client):
        found = client.judge(texts("right"), texts(f"family {tmp_path / 'pid'}"), timeout_secs=1.5)
        assert (found.right, found.problem, found.evidence) == (False, "no end after 1.5 s", None)
        until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_what_takes_too_much_memory_is_wrong(judging: Judging) -> None:
    with judging(judge_mb=200) as (_, client):
        assert client.judge(texts("right"), texts("memory 20")).right
        found = client.judge(texts("right"), texts("memory 400"))
    assert not found.right
    assert found.problem == "no end within 200 MiB of memory: MemoryError"


def test_a_client_that_goes_away_takes_its_request_along(judging: Judging, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    with judging() as (service, client), http(client) as asking:
        asking.timeout = httpx.Timeout(2.0)
        with ThreadPoolExecutor(cores + 1) as pool:
            bodies = [{"reference": texts("right"), "candidate": texts(f"family {tmp_path / str(number)}")}
                      for number in range(cores + 1)]  # fmt: skip
            asked = [pool.submit(asking.post, "/judge", json=body) for body in bodies]
            until(lambda: service.docket.state() == {"running": cores, "waiting": 1})
            for each in asked:
                with pytest.raises(httpx.ReadTimeout):
                    each.result()
        until(lambda: service.docket.state() == {"running": 0, "waiting": 0})
        begun = [int(each.read_text()) for each in tmp_path.glob("[0-9]*") if each.read_text()]
        assert len(begun) <= cores
        until(lambda: all(map(gone, begun)))
        until(lambda: counted(service) == {"gone": cores + 1})


def test_a_full_queue_says_when_to_come_again(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(judge, "MOST_WAITING", 2)
    with judging() as (service, client), http(client) as asking, ThreadPoolExecutor(cores + 2) as pool:
        body = {"reference": texts("right"), "candidate": texts("sleep 2")}
        asked = [pool.submit(asking.post, "/judge", json=body) for _ in range(cores + 2)]
        until(lambda: service.docket.state() == {"running": cores, "waiting": 2})
        refused = asking.post("/judge", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        with pytest.raises(DaemonError, match="the daemon refused: 2 candidates wait to be judged"):
            client.judge(texts("right"), texts("right"))
        assert 'fusiond_judging{state="waiting"} 2.0' in service.metrics.text().decode()
        assert [each.result().json()["right"] for each in asked] == [True] * (cores + 2)
        assert counted(service) == {"full": 2, "right": cores + 2}


def test_the_end_of_the_daemon_ends_them(judging: Judging) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        with judging() as (service, client):
            asked = pool.submit(client.judge, texts("right"), texts("sleep 60"))
            until(lambda: service.docket.state()["running"] == 1)
        with pytest.raises(DaemonError):
            asked.result()
        assert time.monotonic() - begun < 30


def test_one_at_a_time_where_time_is_measured(tmp_path: Path) -> None:
    docket = Docket(COMMAND, ["cuda:0"], 1 << 30, lambda result: None)
    path = tmp_path / "k.yaml"
    path.write_text("sleep 0.3\n")
    try:
        begun = time.monotonic()
        for devices, most in ((["auto", "cuda:0", "cuda"], 1), (["cpu", "counted:h100"], 2)):
            wanted = [JudgeRequest(reference=str(path), candidate=str(path), device=each) for each in devices]
            cases = [docket.enter(each) for each in wanted]
            until(lambda: docket.state()["running"] > 0)
            assert docket.state()["running"] <= most
            assert all(each.ruling.result()["right"] for each in cases)
            if most == 1:
                assert time.monotonic() - begun >= 0.9
    finally:
        docket.close()
    with pytest.raises(DaemonError, match="stops"):
        docket.enter(wanted[0])
