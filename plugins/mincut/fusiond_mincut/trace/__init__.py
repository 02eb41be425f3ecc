"""Pipelines as Python functions, traced into the graph that a YAML file would give.

    @stage(mask=(3, 1), border="mirror")
    def derive(image):
        return (image[1, 0] - image[-1, 0]) / 2

    @stage()
    def magnitude(x, y):
        return C.sqrt(C.float(x * x + y * y))

    def edges(src):
        across = derive(src, name="across")
        return magnitude(across, derive(across, name="twice"))

    made = traced(edges, width=640, height=480, dtype="int32")       # a Pipeline
    Path("edges.yaml").write_text(printer.text(made))                # a file that jobs can name

A function takes images (its parameters are the inputs' names) and returns one image or several: the outputs. Each
call of a stage is a kernel, called as the stage unless it is given a name. Inside a stage, operators are C's: `/` of
integers truncates, `image[dx, dy]` is the pixel at constant offsets, `image.r` a channel. A Python int is an int32, a
float is a float32. `C` has the functions of `expr.FUNCTIONS`, casts, `select`, window operations over a `mask`, `let`,
the pixel's place `C.x`, `C.y` and the size of its image `C.width`, `C.height`; `C.at(image, x, y)` reads a pixel at
computed coordinates, `C.lookup(table, i)` an element of a `table` or of an image's first row.
"""

from fusiond_mincut.trace.functions import C, mask, table
from fusiond_mincut.trace.pipelines import traced
from fusiond_mincut.trace.stages import stage

__all__ = ["C", "mask", "stage", "table", "traced"]
