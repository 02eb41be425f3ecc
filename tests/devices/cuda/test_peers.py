"""Programs for several GPUs, over the fake driver, which has three whole boards here and refuses whatever is done while
another context is current."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusiond.devices import peers
from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda import loop_code
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.model import DeviceState, Outcome
from fusiond.program import Copy, Fill, HostCall, Memory, Pointer, Program, Role, Scalar
from tests.devices.cuda.test_cuda_programs import IOTA, N, buffer, filled, launch, program

HOST = 'extern "C" void more(float* x, int n) { for (int i = 0; i < n; i++) x[i] += 1; }\n'


@pytest.fixture
def boards(gpu: Any) -> Any:
    gpu.set(peers=2)
    return gpu


def over_three_devices(*, host: bool = False) -> Program:
    """Up to the first, doubled, to the third, doubled, down; and on the second something else, beside it."""
    own = {"memory": Memory.PINNED}
    steps = [
        Copy(name="up", source=("h",), target=("a",)),
        launch("first", on="a", stream=1, after=("up",)),
        Copy(name="over", source=("a",), target=("c",), stream=2, after=("first",)),
        launch("third", on="c", device=2, stream=16, after=("over",)),
        Copy(name="down", source=("c",), target=("h",), stream=17, after=("third",)),
        launch("beside", on="b", device=1, stream=8),
        Copy(name="and", source=("b",), target=("g",), stream=8),
    ]
    if host:
        arguments = (Pointer(buffer="h"), Scalar(dtype="int32", value=N))
        steps.append(HostCall(name="more", source="h", entry="more", arguments=arguments, stream=3, after=("down",)))
    return program(
        tuple(steps),
        buffer("h", **own),
        buffer("g", Role.OUTPUT, **own),
        buffer("a", Role.SCRATCH),
        buffer("b", device=1),
        buffer("c", Role.SCRATCH, device=2),
        host=HOST if host else "",
    )


@pytest.mark.parametrize("access", [True, False])
def test_data_go_from_device_to_device(boards: Any, access: bool) -> None:
    boards.set(peer_access=access)
    loaded = filled(boards, over_three_devices())
    assert loaded.clock == "device"
    loaded.snapshot()
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("h"), 4 * IOTA)
    assert np.array_equal(loaded.read("g"), 2 * IOTA)
    assert loaded.broken_guards() == ()
    (peer,) = [line for line in boards.log() if line.startswith("peer ")]
    assert peer.startswith(f"peer {4 * N} from 0 to 3 on ")  # the board behind the slice is the first peer, 2
    loaded.restore()
    assert np.array_equal(loaded.read("b"), IOTA)  # on the second device, from a copy there
    assert loaded.sample_us(2) > 0
    loaded.close()


def test_each_uses_the_memory_of_the_others_where_it_may(boards: Any) -> None:
    executor = boards.executor
    executor.load(over_three_devices(), boards.binaries(over_three_devices()))
    pairs = {line for line in boards.log() if line.startswith("peer access")}
    assert pairs == {f"peer access from {a} to {b}" for a in (0, 2, 3) for b in (0, 2, 3) if a != b}
    executor.load(over_three_devices(), boards.binaries(over_three_devices()))
    assert not [line for line in boards.log() if line.startswith("peer access")]


@pytest.mark.parametrize("by", ["loop", "python"])
def test_with_host_work_it_is_timed_on_the_wall_clock(boards: Any, by: str, monkeypatch: Any) -> None:
    def missing() -> Any:
        raise LookupError("no C++ compiler")

    if by == "python":
        monkeypatch.setattr(loop_code, "loop_library", missing)
    loaded = filled(boards, over_three_devices(host=True))
    assert loaded.clock == "wall"
    loaded.snapshot()
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("h"), 4 * IOTA + 1)
    loaded.restore()
    boards.log()
    assert loaded.sample_us(1) > 0
    assert np.array_equal(loaded.read("h"), 4 * IOTA + 1)
    assert np.array_equal(loaded.read("g"), 2 * IOTA)
    currents = [line for line in boards.log() if line.startswith("current is")]
    assert (currents[-1] == "current is 0") if by == "loop" else not currents
    loaded.close()


def test_data_are_drawn_and_compared_there_too(boards: Any) -> None:
    of = program((launch("a", on="b", device=1),), buffer("b", device=1, fill=Fill(kind="uniform")))
    loaded = boards.load(of)
    data = boards.executor.data
    data.fill(loaded, of.buffers[0], 3)
    assert data.intact(loaded, of.buffers[0], 3)
    before = loaded.read("b")
    loaded.run(seed=0, checked=True)
    data.keep(loaded, of.buffers[0], "reference")
    assert np.array_equal(loaded.read("b"), 2 * before)
    assert data.compare(loaded, of.buffers[0], "reference", lambda: 2 * before).equal


def test_too_few_devices(gpu: Any) -> None:
    """The fake driver's second device is a slice, which has no peers."""
    with pytest.raises(ExecutionError, match="the program is for 3 devices, and there is 1 of this model here") as no:
        gpu.load(over_three_devices())
    assert no.value.outcome is Outcome.LAUNCH_REFUSED
    gpu.set(peers=1)
    with pytest.raises(ExecutionError, match="is for 3 devices, and there are 2 of this model here"):
        gpu.load(over_three_devices())


def test_who_is_beside_whom(boards: Any) -> None:
    infos = CudaProvider(lambda: boards.driver).devices()
    assert [(each.name, each.devices) for each in infos] == [("cuda:0", 3), ("cuda:1", 1), ("cuda:2", 3), ("cuda:3", 3)]
    assert [each.name for each in peers.beside(infos, infos[2], 3)] == ["cuda:3", "cuda:0"]
    assert [each.name for each in peers.beside(infos, infos[0], 2)] == ["cuda:2"]
    assert peers.beside(infos, infos[1], 2) == ()


def test_who_computes_on_another_device_is_seen(boards: Any) -> None:
    class Shared:
        def state(self) -> DeviceState:
            return DeviceState(throttle="power_cap", others=2)

    executor = boards.executor
    boards.load(over_three_devices())
    assert len(executor._beside_sensors) == 2
    before = executor.state()
    executor._beside_sensors[1] = Shared()
    assert (before.others, executor.state().others, executor.state().throttle) == (0, 2, "power_cap")
