"""Functions as Inductor writes them, run as they are and with their launches in rounds: over memory that is handed out
again as soon as nothing names it, as torch's allocator does it."""

from __future__ import annotations

import ast
import itertools
import random
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fusiond.torch import rounds

USES: dict[str, tuple[bool | None, ...]] = {
    "scale": (False, True, None), "add": (False, False, True, None), "norm": (False, True, True, None, None),
    "step": (True, False, None), "fill": (True, None),
}  # fmt: skip


class Memory:
    """Cells, the one that was given back last first."""

    def __init__(self) -> None:
        self.free: list[list[Any]] = []
        self.numbers = itertools.count()

    def empty(self, *shape: object) -> Tensor:
        return Tensor(self, self.free.pop() if self.free else [None])


class Tensor:
    def __init__(self, memory: Memory, cell: list[Any]) -> None:
        self.memory, self.cell, self.number = memory, cell, next(memory.numbers)

    def __del__(self) -> None:
        self.memory.free.append(self.cell)


class View:
    def __init__(self, tensor: Any) -> None:
        self.tensor, self.cell, self.number = tensor, tensor.cell, tensor.number


class Launched:
    """What a run of a function did."""

    def __init__(self) -> None:
        self.uses: list[tuple[set[int], set[int]]] = []
        """Of each launch: the numbers of the tensors that it reads, and that it writes."""
        self.runs = 0
        self.results: list[Any] = []


class KernelLikeInductors:
    def __init__(self, name: str, done: Launched) -> None:
        self.name, self.done = name, done

    def run(self, *handed: Any, stream: int) -> None:
        self.done.runs += 1
        self.launch(*handed)

    def launch(self, *handed: Any) -> None:
        given = [each.cell[0] if hasattr(each, "cell") else each for each in handed]
        if self.name == "fill":
            given[0] = None  # it reads nothing
        uses = USES[self.name]
        read = {each.number for each, use in zip(handed, uses, strict=True) if use is False}
        written = {each.number for each, use in zip(handed, uses, strict=True) if use}
        self.done.uses.append((read, written))
        for place, use in enumerate(uses):
            if use:
                handed[place].cell[0] = hash((self.name, place, *given))


def run(function: ast.FunctionDef, found: Sequence[tuple[str, ...]], inputs: int, seed: int) -> Launched:
    """`found`: those of the function, whose launches run in any order."""
    done, memory, draw = Launched(), Memory(), random.Random(seed)
    kernels = {name: KernelLikeInductors(name, done) for name in USES}

    def in_any_order(each: tuple[str, ...]) -> Callable[..., None]:
        def called(*launches: Any) -> None:
            done.runs += 1
            for number in draw.sample(range(len(launches)), len(launches)):
                kernels[each[number]].launch(*launches[number][1:])

        return called

    class Library:
        @staticmethod
        def mm(a: Any, b: Any, out: Any) -> None:
            out.cell[0] = hash(("mm", a.cell[0], b.cell[0]))

        @staticmethod
        def convolution(a: Any, b: Any) -> Tensor:
            found = memory.empty()
            found.cell[0] = hash(("convolution", a.cell[0], b.cell[0]))
            return found

    def unknown(a: Any, b: Any) -> View:
        """Writes what it is handed, and gives a view of it."""
        a.cell[0] = hash(("unknown", a.cell[0], b.cell[0]))
        return View(a)

    scope: dict[str, Any] = {
        **kernels, "empty_strided_cuda": memory.empty, "reinterpret_tensor": lambda tensor, *shape: View(tensor),
        "copy_if_misaligned": lambda tensor: tensor, "get_raw_stream": lambda device: 0,
        "assert_size_stride": lambda *given: None, "extern_kernels": Library, "unknown": unknown,
        rounds.ROUNDS: [in_any_order(each) for each in found],
    }  # fmt: skip
    module = ast.Module([function], [])
    exec(compile(module, "wrapper", "exec"), scope)
    given = []
    for number in range(inputs):
        given.append(memory.empty())
        given[-1].cell[0] = number
    results = scope["call"](list(given))
    done.results = [each.cell[0] for each in (*results, *given)]
    return done


def parsed(text: str) -> ast.FunctionDef:
    (function,) = ast.parse(textwrap.dedent(text)).body
    assert isinstance(function, ast.FunctionDef)
    return function


def written(seed: int, library: bool) -> str:
    """A function of as many statements as come."""
    draw = random.Random(seed)
    names = [f"arg{each}_1" for each in range(draw.randint(2, 5))]
    lines = [f"{', '.join(names)} = args", "args.clear()"]
    inner: list[str] = []
    count = itertools.count()
    for _ in range(draw.randint(4, 24)):
        kind = draw.choice(
            ["launch"] * 8 + ["reuse", "view", "del"] + ["align", "mm", "convolution", "unknown"] * library
        )
        if kind == "launch":
            kernel = draw.choice(list(USES))
            handed = []
            inner.append("stream0 = get_raw_stream(0)")
            for use in USES[kernel]:
                if use is None:
                    handed.append(str(draw.randint(1, 99)))
                elif use and kernel != "step" and draw.random() < 0.8:
                    names.append(f"buf{next(count)}")
                    inner.append(f"{names[-1]} = empty_strided_cuda((8,), (1,))")
                    if kernel != "fill":
                        inner.append(f"fill.run({names[-1]}, 0, stream=stream0)")  # what is read was written
                    handed.append(names[-1])
                else:
                    handed.append(draw.choice(names))
            inner.append(f"{kernel}.run({', '.join(handed)}, stream=stream0)")
        elif kind == "mm":
            inner.append(f"extern_kernels.mm({draw.choice(names)}, {draw.choice(names)}, out={draw.choice(names)})")
        elif kind == "align":
            name = draw.choice(names)
            inner.append(f"{name} = copy_if_misaligned({name})")
        elif kind == "del":
            if len(names) > 2:
                inner.append(f"del {names.pop(draw.randrange(len(names)))}")
        else:
            old = draw.randrange(len(names))
            new = f"buf{next(count)}"
            value = {
                "reuse": names[old], "view": f"reinterpret_tensor({names[old]}, (4,))",
                "convolution": f"extern_kernels.convolution({names[old]}, {draw.choice(names)})",
                "unknown": f"unknown({names[old]}, {draw.choice(names)})",
            }[kind]  # fmt: skip
            inner.append(f"{new} = {value}")
            if kind == "reuse":
                inner.append(f"del {names[old]}")
                names[old] = new
            else:
                names.append(new)
    body = [*lines, "if True:", *(f"    {each}" for each in inner), f"return ({', '.join(names)},)"]
    return "\n".join(["def call(self, args):", *(f"    {each}" for each in body)]).replace("self, ", "")


def chains(done: Launched) -> list[int]:
    """Of each launch, how many come before it one after the other: by what each reads and writes."""
    found: list[int] = []
    for read, write in done.uses:
        before = [
            found[number] for number, (reads, writes) in enumerate(done.uses[: len(found)])
            if write & (reads | writes) or read & writes
        ]  # fmt: skip
        found.append(max(before, default=-1) + 1)
    return found


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("library", [False, True])
def test_what_it_gives_stays(seed: int, library: bool) -> None:
    text = written(seed, library)
    inputs = text.split(" = args")[0].count("arg")
    plain = run(parsed(text), [], inputs - 1, seed)
    function = parsed(text)
    found = rounds.put_together(function, USES)
    for order in range(3):
        together = run(function, found, inputs - 1, order)
        assert together.results == plain.results, ast.unparse(function)
        assert len(together.uses) == len(plain.uses)
    some = parsed(text)
    chosen = {number for number in range(len(found)) if random.Random(seed + number).random() < 0.5}
    assert rounds.put_together(some, USES, 0, chosen) == found
    together = run(some, found, inputs - 1, seed)
    assert together.results == plain.results, ast.unparse(some)
    assert together.runs == len(plain.uses) - sum(len(found[each]) - 1 for each in chosen)


def found_in(text: str) -> list[tuple[str, ...]]:
    lines = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    return list(rounds.put_together(parsed(f"def call(args):\n{lines}"), USES))


def test_two_chains_are_rounds() -> None:
    assert found_in(
        """
        scale.run(a, b, 1, stream=s)
        step.run(b, c, 1, stream=s)
        fill.run(d, 1, stream=s)
        add.run(d, c, e, 1, stream=s)
        """
    ) == [("scale", "fill"), ("step", "add")]


@pytest.mark.parametrize(
    "between",
    [
        "extern_kernels.mm(a, x, out=c)", "a = copy_if_misaligned(a)", "del a", "d = empty_strided_cuda((1,), (1,))",
        "s = get_raw_stream(0)",
    ],
)  # fmt: skip
def test_a_launch_waits_for_what_does_not(between: str) -> None:
    assert found_in(f"scale.run(a, b, 1, stream=s)\n{between}\nfill.run(x, 1, stream=s)") == [("scale", "fill")]


def test_what_is_handed_stays_as_it_was() -> None:
    """A name that is another tensor by the time that its launch runs."""
    function = parsed(
        "def call(args):\n scale.run(a, b, 1, stream=s)\n a = empty_strided_cuda()\n fill.run(c, 2, stream=s)"
    )
    (found,) = rounds.put_together(function, USES, 5)
    assert ast.unparse(function).splitlines()[1:] == [
        "    _launch_0 = (s, a, b, 1)", "    a = empty_strided_cuda()", "    _launch_1 = (s, c, 2)",
        f"    {rounds.ROUNDS}[5](_launch_0, _launch_1)", "    del _launch_0, _launch_1",
    ]  # fmt: skip
    assert found == ("scale", "fill")
