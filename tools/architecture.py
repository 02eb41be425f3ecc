"""docs/images/architecture.svg: the layers of pyproject.toml with the imports between them, as they are in the code.

    python -m tools.architecture

A line is drawn for an import that no chain of other lines stands for (the transitive reduction), so what is drawn is
all that the rest follows from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PLUGINS = tuple(sorted(each.name for each in ROOT.glob("plugins/*/fusiond_*")))
WIDTH, ROW, BOX, GAP = 960, 62, 26, 14
_STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1b1f24 } rect.box { fill: #eef3fa; stroke: #4a6fa5 } "
    "rect.plugin { fill: #f7efe2; stroke: #a5794a } path { stroke: #8a94a3; fill: none; stroke-width: 1 }"
)


def layers() -> list[list[str]]:
    """Modules, from the top; plugins have a layer of their own above what they may import."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (found,) = [each["layers"] for each in contracts if each["name"] == "Imports point one way"]
    rows = [[name.strip() for name in row.split(":")] for row in found]
    above = next(number for number, row in enumerate(rows) if "fusiond.strategy" in row)
    return [*rows[:above], list(PLUGINS), *rows[above:]]


def imports(rows: list[list[str]]) -> networkx.DiGraph:
    """Which module of the layers imports one of a lower layer, without what follows from others."""
    level = {name: number for number, row in enumerate(rows) for name in row}
    graph = grimp.build_graph("fusiond", *PLUGINS, exclude_type_checking_imports=True, cache_dir=None)

    def home(module: str) -> str | None:
        fitting = [each for each in level if module == each or module.startswith(f"{each}.")]
        return max(fitting, key=len, default=None)

    found = networkx.DiGraph()
    found.add_nodes_from(level)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = home(module), home(other)
            if one and two and level[one] < level[two]:
                found.add_edge(one, two)
    return networkx.transitive_reduction(found)


def places(rows: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Left edge, top edge and width of each box."""
    found: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        widths = [8 * len(_label(name)) + 18 for name in row]
        left = (WIDTH - sum(widths) - GAP * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            found[name] = (left, 10 + number * ROW, width)
            left += width + GAP
    return found


def drawn(rows: list[list[str]], edges: networkx.DiGraph, at: Mapping[str, tuple[float, float, float]]) -> str:
    height = 10 + len(rows) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The packages of fusiond in layers; imports point down"><style>{_STYLE}</style>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for one, two in sorted(edges.edges):
        (x1, y1, w1), (x2, y2, w2) = at[one], at[two]
        a, b, top, bottom = x1 + w1 / 2, x2 + w2 / 2, y1 + BOX, y2
        lines.append(
            f'<path d="M{a:.0f} {top:.0f} C{a:.0f} {(top + bottom) / 2:.0f} {b:.0f} {(top + bottom) / 2:.0f} '
            f'{b:.0f} {bottom:.0f}"/>'
        )
    for name, (x, y, width) in at.items():
        kind = "plugin" if name in PLUGINS else "box"
        lines.append(f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width}" height="{BOX}" rx="4"/>')
        lines.append(f'<text x="{x + width / 2:.0f}" y="{y + 17}" text-anchor="middle">{_label(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _label(name: str) -> str:
    return name.removeprefix("fusiond.").removeprefix("fusiond_")


def picture() -> str:
    rows = layers()
    return drawn(rows, imports(rows), places(rows))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
