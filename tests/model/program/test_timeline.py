"""Plans in time: by hand, and the bounds that any plan keeps."""

import itertools
import random

from fusiond.model.program import Buffer, Copy, HostCall, Launch, Memory, Program, Role, Source, SourceKind
from fusiond.model.program.steps import Step
from fusiond.model.program.timeline import DOWN, HOST, KERNELS, UP, timeline

DEVICE = Source(name="d", text="", entries=("k",))
HOSTS = Source(name="h", kind=SourceKind.HOST, text="", entries=("f",))


def plan(*steps: Step, memory: Memory = Memory.PINNED, issue: str = "streams") -> Program:
    here = [Buffer(name=name, dtype="int32", elements=4, role=Role.SCRATCH, memory=memory) for name in ("a", "b")]
    there = [Buffer(name=f"{name}@", dtype="int32", elements=4, role=Role.SCRATCH) for name in ("a", "b")]
    return Program(name="p", buffers=(*here, *there), sources=(DEVICE, HOSTS), steps=steps, issue=issue)


def up(name: str, stream: int = 1, after: tuple[str, ...] = ()) -> Copy:
    return Copy(name=name, source=("a",), target=("a@",), stream=stream, after=after)


def down(name: str, stream: int = 2, after: tuple[str, ...] = ()) -> Copy:
    return Copy(name=name, source=("b@",), target=("b",), stream=stream, after=after)


def kernel(name: str, stream: int = 0, after: tuple[str, ...] = ()) -> Launch:
    return Launch(
        name=name, source="d", entry="k", arguments=(), grid=(1, 1, 1), block=(1, 1, 1), stream=stream, after=after
    )


def host(name: str, after: tuple[str, ...] = ()) -> HostCall:
    return HostCall(name=name, source="h", entry="f", arguments=(), stream=3, after=after)


def chunks(count: int) -> list[Step]:
    found: list[Step] = []
    for k in range(count):
        found += [up(f"u{k}"), kernel(f"k{k}", after=(f"u{k}",)), down(f"d{k}", after=(f"k{k}",))]
    return found


def test_on_one_stream_everything_follows() -> None:
    steps = [up("u", 0), kernel("k"), down("d", 0)]
    found = timeline(plan(*steps), {"u": 3, "k": 5, "d": 7})
    assert found.span_us == 15
    assert found.busy_us == {UP: 3, KERNELS: 5, DOWN: 7, HOST: 0}
    assert found.steps["k"] == (3, 8)


def test_the_host_waits_and_then_issues() -> None:
    steps = [up("u"), kernel("k", after=("u",)), down("d", after=("k",)), host("h", after=("d",)), up("v")]
    found = timeline(plan(*steps), dict.fromkeys("ukdhv", 2.0))
    assert found.steps["h"] == (6, 8)
    assert found.steps["v"] == (8, 10), "what is listed behind a call is not issued before it has ended"


def test_what_is_ready_first_or_last_goes_first() -> None:
    steps = [kernel("a", 0), up("u", 1), up("v", 2)]
    us = {"a": 1.0, "u": 3.0, "v": 3.0}
    assert timeline(plan(*steps), us).steps["u"] == (0, 3)
    behind = [kernel("a", 0), up("u", 1, after=("a",)), up("v", 2, after=("a",))]
    assert timeline(plan(*behind), us).steps["v"] == (4, 7)
    assert timeline(plan(*behind), us, late=True).steps["v"] == (1, 4)


def test_what_is_not_counted_takes_no_time() -> None:
    give = Copy(name="give", source=("a",), target=("a@",), counted=False)
    assert timeline(plan(give, kernel("k")), {"k": 4}).span_us == 4


def test_every_plan_keeps_its_bounds() -> None:
    """Between the longest chain of waits (or the busiest engine) and the sum; nothing begins before what it waits
    for, and no engine does two things at once."""
    for seed in range(60):
        generator = random.Random(seed)
        steps: list[Step] = []
        for number in range(25):
            name = f"s{number}"
            waits = tuple(generator.sample([each.name for each in steps], min(len(steps), generator.randrange(3))))
            make = generator.choice((up, down, kernel, host) if seed % 3 == 0 else (up, down, kernel))
            steps.append(make(name, after=waits) if make is host else make(name, generator.randrange(4), waits))
        us = {step.name: float(generator.randrange(1, 9)) for step in steps}
        program = plan(*steps)
        found = timeline(program, us, late=seed % 2 == 0)
        assert max(found.busy_us.values()) <= found.span_us <= sum(us.values())
        last: dict[int, str] = {}
        taken: dict[str, list[tuple[float, float]]] = {}
        for step in steps:
            begin, end = found.steps[step.name]
            before = [*step.after, *([last[step.stream]] if step.stream in last else [])]
            assert all(found.steps[name][1] <= begin for name in before)
            assert end - begin == us[step.name]
            last[step.stream] = step.name
            taken.setdefault(type(step).__name__ + str(getattr(step, "source", "")), []).append((begin, end))
        for spans in taken.values():
            spans.sort()
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
