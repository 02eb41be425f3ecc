"""Files as people have them after a bad merge, a broken disk or an unkind thought: mutations of a plugin's own
documents and sources, drawn from a seed."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PLUGINS = Path(__file__).parents[3] / "plugins"

NUMBERS = ("0", "-1", "1", "3", "2147483647", "2147483648", "-9223372036854775809", "99999999999999999999999999",
           "1e400", "nan", ".inf", "0x10", "1_000", "''", "true", "~")  # fmt: skip
TOKENS = ("{", "}", "[", "]", "(", ")", "!", "-", "~", "*", "&", "&x", "*x", "<<", "%", "/", "//", "#", ":", ",", "\\",
          '"', "'", "\0", "\t", "\r", "\x1b[31m", "\u202e", "\ufeff", "é", "{{", "!!python/object:os.system",
          "__syncthreads();", "template<", "return;", "goto x;", "asm(\"\")", "constant(", "fusion(",
          "while(")  # fmt: skip
DEPTHS = (10, 300, 5000, 100_000)


@dataclass(frozen=True, slots=True)
class Project:
    """A job and the files beside it: name -> content; `targets` are those that are mutated."""

    name: str
    files: dict[str, bytes]
    targets: tuple[str, ...]


def projects() -> list[Project]:
    """One for each kernel, pipeline, graph and module that the plugins bring, and for a job of each."""
    found = []
    kernels = PLUGINS / "hfuse/fusiond_hfuse/kernels"
    for path in sorted(kernels.glob("*.yaml")):
        partner = "hist" if path.stem != "hist" else "maxpool"
        job = f"strategy: hfuse\npair: [./{path.name}, {partner}]\nsearch: {{trials: 8}}\n"
        found.append(_project(f"hfuse-{path.stem}", job, [path, path.with_suffix(".cu")]))
    for path in sorted((PLUGINS / "mincut/fusiond_mincut/pipelines").glob("*.yaml")):
        found.append(_project(f"mincut-{path.stem}", f"strategy: mincut\npipeline: ./{path.name}\n", [path]))
    graphs = PLUGINS / "transfer/fusiond_transfer/graphs"
    for path in sorted(graphs.glob("*.yaml")):
        sources = [each for each in graphs.glob("*.c*") if each.name in path.read_text()]
        job = f"strategy: transfer\ngraph: ./{path.name}\n"
        found.append(_project(f"transfer-{path.stem}", job, [path, *sources]))
    for path in sorted((PLUGINS / "stitching/fusiond_stitching/modules").glob("*.hlo")):
        if path.stat().st_size < 200_000:
            found.append(_project(f"stitching-{path.stem}", f"strategy: stitching\nmodule: ./{path.name}\n", [path]))
    return found


def _project(name: str, job: str, paths: list[Path]) -> Project:
    files = {"job.yaml": job.encode(), **{path.name: path.read_bytes() for path in paths}}
    return Project(name, files, tuple(files))


def mutated(project: Project, draw: random.Random, others: list[bytes]) -> dict[str, bytes]:
    """The project's files, one of them changed in one to three ways."""
    files = dict(project.files)
    target = draw.choice([*project.targets, *project.targets[1:] * 3])  # the job itself is the dullest
    data = files[target]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(_WAYS)(data, draw, others)
    files[target] = data[:4_000_000]
    return files


def _spot(data: bytes, draw: random.Random) -> int:
    return draw.randrange(len(data) + 1)


def _flip(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    at = _spot(data, draw)
    return data[:at] if draw.random() < 0.3 else data[:at] + data[at + draw.randrange(1, 80) :]


def _number(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    places = list(re.finditer(rb"\b\d+(\.\d+)?\b", data))
    if not places:
        return data
    place = draw.choice(places)
    return data[: place.start()] + draw.choice(NUMBERS).encode() + data[place.end() :]


def _word(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """One name in place of another of the same file."""
    places = list(re.finditer(rb"[A-Za-z_][A-Za-z0-9_.]*", data))
    if len(places) < 2:
        return data
    place, other = draw.sample(places, 2)
    return data[: place.start()] + other.group() + data[place.end() :]


def _token(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    at = _spot(data, draw)
    return data[:at] + draw.choice(TOKENS).encode() + data[at:]


def _deep(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """One token, very often: what recurses for each of them."""
    at = _spot(data, draw)
    return data[:at] + draw.choice(TOKENS[:16]).encode() * draw.choice(DEPTHS) + data[at:]


def _nested(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """Brackets round a word, well balanced and very deep."""
    places = list(re.finditer(rb"[A-Za-z_0-9]+", data))
    if not places:
        return data
    place, depth = draw.choice(places), draw.choice(DEPTHS)
    left, right = draw.choice(((b"(", b")"), (b"[", b"]"), (b"{", b"}"), (b"-(", b")"), (b"f(", b")")))
    return data[: place.start()] + left * depth + place.group() + right * depth + data[place.end() :]


def _lines(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    way = draw.randrange(4)
    at = draw.randrange(len(lines))
    if way == 0:
        del lines[at]
    elif way == 1:
        lines[at:at] = [lines[at]] * draw.choice((1, 2, 1000))
    elif way == 2:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = draw.choice((b"  ", b"\t", b"- ")) + lines[at]
    return b"".join(lines)


def _splice(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    other = draw.choice(others)
    at, there = _spot(data, draw), _spot(other, draw)
    return data[:at] + other[there : there + draw.randrange(1, 2000)] + data[at:]


_WAYS: tuple[Callable[[bytes, random.Random, list[bytes]], bytes], ...] = (
    _flip, _flip, _cut, _number, _number, _word, _word, _token, _deep, _nested, _lines, _splice,
)  # fmt: skip
