"""Generated pipelines: YAML texts of random graphs, for planning."""

import random

from fusiond.model.inputs import documents
from fusiond_mincut.frontend import parser
from fusiond_mincut.frontend.graph import Pipeline

BORDERS = ("clamp", "mirror", "reflect", "repeat", "{constant: 3}")


def text(seed: int, count: int, *, reach: int = 4, local: float = 0.4, shuffled: int | None = None) -> str:
    """A pipeline of `count` kernels, each of which reads one to three of the last `reach` images; what nobody reads is
    an output. `shuffled` puts the kernels into the file in another order."""
    draw = random.Random(seed)
    names = ["src"]
    lines: list[str] = []
    read: set[str] = set()
    for number in range(count):
        name = f"k{number}" if draw.random() < 0.5 else f"z{count - number}"
        images = sorted(draw.sample(names[-reach:], min(draw.choice((1, 1, 1, 2, 2, 3)), len(names[-reach:]))))
        read |= set(images)
        terms = []
        if draw.random() < local:
            width, height = draw.choice(((3, 3), (3, 1), (1, 3), (5, 3)))
            for image in images:
                dx, dy = draw.randint(0, width // 2), draw.randint(0, height // 2)
                terms.append(f"{image}[{dx}, {dy}] * 3 + {image}[{-dx}, {-dy}]")
            head = f"pattern: local, mask: [{width}, {height}], border: {draw.choice(BORDERS)}"
        else:
            terms = [f"({image} >> 1) - 5" for image in images]
            head = "pattern: point"
        body = " ^ ".join(f"({term})" for term in terms) + " + 1" * draw.randint(0, 6)
        lines.append(f'  {name}: {{{head}, reads: [{", ".join(images)}], body: "{body}"}}')
        names.append(name)
    outputs = [name for name in names[1:] if name not in read]
    if shuffled is not None:
        random.Random(shuffled).shuffle(lines)
    return "\n".join(
        [f"pipeline: generated{seed}", "image: {width: 64, height: 48, dtype: int32}", "inputs: [src]",
         f"outputs: [{', '.join(outputs)}]", "kernels:", *lines, ""]
    )  # fmt: skip


def pipeline(seed: int, count: int, *, reach: int = 4, local: float = 0.4, shuffled: int | None = None) -> Pipeline:
    given = text(seed, count, reach=reach, local=local, shuffled=shuffled)
    return parser.read(documents.parse(given, "generated.yaml"))
