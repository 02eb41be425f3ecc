"""A planned pipeline for people: Graphviz text with the blocks as boxes, and a plain text for the terminal."""

from fusiond.model.english import counted
from fusiond_mincut.analysis.partition import PlannedPartition
from fusiond_mincut.frontend.graph import Pipeline

_SHAPES = {"point": "ellipse", "local": "box"}  #: Boundaries are hexagons


def dot(pipeline: Pipeline, planned: PlannedPartition) -> str:
    """The graph in Graphviz' language: a cluster for each block of several kernels, weights on the edges, edges that
    may not be fused dashed. `dot -Tsvg` makes a picture of it."""
    lines = [f'digraph "{pipeline.name}" {{', "    rankdir=LR;", '    node [fontname="sans-serif"];']
    lines += [f'    "{each.name}" [shape=plaintext];' for each in pipeline.inputs]
    for number, block in enumerate(planned.partition.blocks):
        indent = "    "
        if len(block.kernels) > 1:
            lines += [f"    subgraph cluster_{number} {{", f'        label="{block}";', "        style=rounded;"]
            indent = "        "
        for name in block.kernels:
            shape = _SHAPES.get(pipeline.kernel(name).pattern, "hexagon")
            outline = ", peripheries=2" if name in pipeline.outputs else ""
            lines.append(f'{indent}"{name}" [shape={shape}{outline}];')
        if len(block.kernels) > 1:
            lines.append("    }")
    given = {each.name for each in pipeline.inputs}
    lines += [
        f'    "{image}" -> "{kernel.name}" [color=gray];'
        for kernel in pipeline.kernels
        for image in kernel.reads
        if image in given
    ]
    for edge in planned.edges:
        style = ", style=dashed" if edge.scenario == "illegal" else ""
        lines.append(f'    "{edge.producer}" -> "{edge.consumer}" [label="{edge.weight:g}"{style}];')
    return "\n".join([*lines, "}", ""])


def text(pipeline: Pipeline, planned: PlannedPartition) -> str:
    """Edges with weights, the cuts in order, the blocks: lines of plain text."""
    kernels, edges = counted(len(pipeline.kernels), "kernel"), counted(len(planned.edges), "edge")
    lines = [f"{kernels}, {edges}; weights in cycles saved per pixel"]
    width = max((len(f"{each.producer} -> {each.consumer}") for each in planned.edges), default=0)
    lines += [
        f"  {f'{each.producer} -> {each.consumer}':{width}}  {each.weight:>8g}  {each.scenario.replace('_', '-')}"
        for each in planned.edges
    ]
    lines.append("cuts, in order:" if planned.cuts else "no cut: the whole pipeline is one block")
    for number, step in enumerate(planned.cuts, 1):
        one, two = ("{" + ", ".join(side) + "}" for side in step.sides)
        lines.append(f"  {number}. {one} | {two}  along {step.weight:g}  ({step.reason.rule})")
        lines.append(f"     {step.reason.detail}")
    lines.append(f"blocks, {planned.benefit:g} saved:")
    lines += [f"  {each}" for each in planned.partition.blocks]
    return "\n".join(lines) + "\n"
