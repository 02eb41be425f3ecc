"""The numbers of the paper's tables 4 to 6 (Kessler), as they stand there: what ours are put beside."""

from __future__ import annotations

from dataclasses import dataclass

CITATION = "Kessler, Global optimization of operand transfer fusion in heterogeneous computing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of table 4. `saved` holds (4 attempts, 400 attempts) where the table has both; `graph` is what we have for
    it: a catalogue name, or the generator's shape."""

    name: str
    kernels: int
    inputs: int
    indegree: tuple[int, int] | None = None
    outdegree: tuple[int, int] | None = None
    greedy: tuple[int, int]
    tight: tuple[int, int]
    time_ms: float
    graph: str | None = None
    regular: str | None = None  #: chain, out_tree or in_tree with kernels on either side at random


def _random(kernels: int, inputs: int, ins: tuple[int, int], outs: tuple[int, int], *saved: int, ms: float) -> Row:
    greedy, tight = (saved[0], saved[0]), (saved[1], saved[1])
    if len(saved) == 4:
        greedy, tight = (saved[0], saved[2]), (saved[1], saved[3])
    return Row(
        name=f"random, {kernels} kernels",
        kernels=kernels,
        inputs=inputs,
        indegree=ins,
        outdegree=outs,
        greedy=greedy,
        tight=tight,
        time_ms=ms,
    )


def _known(
    name: str,
    kernels: int,
    inputs: int,
    greedy: int,
    tight: int,
    ms: float,
    graph: str | None,
    regular: str | None = None,
) -> Row:
    return Row(
        name=name, kernels=kernels, inputs=inputs, greedy=(greedy, greedy), tight=(tight, tight), time_ms=ms,
        graph=graph, regular=regular,
    )  # fmt: skip


TABLE_4 = (
    _known("figure 2", 5, 3, 7, 7, 0.1, "fig2"),
    _random(8, 12, (2, 3), (1, 1), 7, 7, 9, 8, ms=0.2),
    _random(10, 5, (2, 4), (1, 2), 11, 11, ms=0.2),
    _random(16, 12, (1, 4), (1, 2), 14, 14, ms=0.3),
    _random(16, 16, (2, 3), (1, 2), 19, 17, ms=0.3),
    _random(18, 8, (1, 2), (1, 2), 12, 12, ms=0.2),
    _random(18, 8, (2, 2), (1, 2), 16, 15, ms=0.4),
    _random(20, 8, (1, 1), (1, 1), 11, 11, ms=0.2),
    _random(20, 8, (1, 3), (1, 2), 18, 17, ms=0.2),
    _random(24, 10, (2, 3), (2, 2), 28, 26, ms=0.6),
    _random(48, 10, (2, 2), (1, 2), 41, 38, 42, 41, ms=0.9),
    _random(60, 10, (1, 2), (1, 2), 40, 37, ms=2.0),
    _random(98, 12, (2, 2), (1, 2), 75, 70, ms=5.7),
    _known("linear chain", 20, 1, 0, 0, 0.1, "chain"),
    _known("out-bound tree, all on the device", 15, 1, 15, 15, 0.2, "out_tree"),
    _known("out-bound tree, half on the device", 15, 1, 14, 14, 0.2, None, "out_tree"),
    _known("in-bound tree, all on the device", 15, 16, 15, 8, 0.2, "in_tree"),
    _known("in-bound tree, half on the device", 15, 16, 14, 11, 0.2, None, "in_tree"),
    _known("in-bound tree of 31, all on the device", 31, 32, 31, 16, 0.5, "in_tree31"),
    _known("in-bound tree of 31, half on the device", 31, 32, 27, 17, 0.5, None, "in_tree31"),
    _known("Horner's rule", 20, 12, 11, 11, 0.3, "horner"),
    _known("Cholesky, 4x4 blocks", 20, 4, 14, 14, 0.2, "cholesky"),
    _known("Cholesky, SYRK on the host", 20, 4, 9, 8, 0.2, "cholesky_host_syrk"),
    _known("matrix product, 2x2 blocks", 12, 8, 11, 11, 0.1, "matmul"),
    _known("conjugate gradient, steady state", 7, 2, 2, 2, 0.1, "cg"),
)

LENGTHS = (4096, 16384, 65536, 262144, 1048576, 4194304)  #: Elements of a vector, four bytes each

TABLE_5 = {
    # graph: (microseconds without fusion, with) for each length
    "fig2": ((211, 141), (415, 327), (1136, 1028), (4010, 3641), (14455, 13907), (55421, 55464)),
    "random24": ((818, 302), (1850, 1451), (5744, 5086), (23188, 23000), (95858, 94608), (368109, 374662)),
    "horner": ((550, 492), (952, 873), (2567, 2272), (8355, 7600), (27836, 26989), (105938, 105644)),
    "cholesky": ((471, 422), (900, 847), (2583, 2498), (9119, 8748), (33391, 33012), (130660, 131693)),
    "matmul": ((330, 256), (651, 572), (1952, 1765), (7185, 6505), (25401, 24930), (100026, 99363)),
    "cg": ((148, 141), (271, 271), (769, 753), (2656, 2581), (9540, 9492), (37607, 37411)),
}
"""Kernels of linear work; a Quadro K2100M, CUDA 8."""

TABLE_6 = {
    "fig2": ((645, 1165), (824, 1349), (3318, 2031), (11373, 4865), (29229, 14889), (98861, 95382)),
    "horner": ((891, 1106), (2020, 1787), (5756, 4738), (18437, 13951), (28265, 23890), (67899, 65024)),
    "cg": ((557, 850), (649, 999), (1871, 1829), (6523, 5583), (17224, 16455), (60741, 59841)),
}
"""The same with allocations counted."""
