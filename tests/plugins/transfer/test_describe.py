"""What `plan` prints of a graph."""

from __future__ import annotations

from collections.abc import Callable

from fusiond.model.nouns import Analysis
from fusiond_transfer.analysis import describe, schedule
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer

FIGURE_2 = """\
time line: uploads before a kernel | downloads behind it; a name: may cross, [name]: does
  0 k0 (device) [A] [B] [C]  .  | [D] [E]  .   .   .   .   .
  1 k1 (host)    .   .   C   .  |  D   .   .   .   .   .   .
  2 k2 (device)  .   .   C  [F] |  D   .   I   .   .   .   .
  3 k3 (device)  .   .   .   .  |  D   .   I   J   K   .   .
  4 k4 (device)  .   .   .   .  |  D   .  [I] [J] [K] [L] [M]

messages: 4 for 11 vectors to carry, 7 saved
  before k0: upload A B C: 49152 bytes
  after k0: download D E: 32768 bytes
  before k2: upload F: 16384 bytes
  after k4: download I J K L M: 81920 bytes

layout, alike in both memories: 180224 bytes
  A at 0, B at 16384, C at 32768, D at 49152, E at 65536, F at 81920, I at 98304, J at 114688, K at 131072
  L at 147456, M at 163840

4 messages: proven to be the fewest in this order of the kernels
uploads that no slot has in common: A [0..0], F [2..2]
downloads that no slot has in common: E [0..0], L [4..4]
"""


def test_figure_2_is_drawn_as_in_the_paper(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    assert strategy.describe(analyse("fig2")).partition("\nchunks: ")[0] == FIGURE_2


def test_a_loop_shows_the_next_turn(graph: Callable[..., Graph]) -> None:
    """The paper's table of the same graph, as a loop: a slot behind the last kernel is in the next iteration."""
    text = describe.timeline(schedule.build(graph("cg"), "interval_stabbing"))
    assert "[q]" in text
    assert "[p_next]" in text


def test_the_bytes_of_a_message_are_those_that_are_copied(
    analyse: Callable[..., Analysis], strategy: Transfer, graph: Callable[..., Graph]
) -> None:
    """From the first byte of the first vector to the last of the last, alignment between them included."""
    text = """graph: small
inputs: [a, b]
outputs: [c]
vectors: {a: {elements: 3}, b: {elements: 5}, c: {elements: 7}}
kernels:
  - {name: k, on: device, reads: [a, b], writes: [c]}
"""
    shown = strategy.describe(analyse(text))
    assert f"before k: upload a b: {256 + 5 * 4} bytes" in shown
    assert "after k: download c: 28 bytes" in shown


def test_what_is_too_large_is_said_and_not_drawn() -> None:
    graph = random_graph(Shape(kernels=300, inputs=9, indegree=(1, 2), outdegree=(1, 2), seed=1))
    found = schedule.build(graph, "interval_stabbing")
    assert describe.timeline(found).startswith(f"time line: {len(found.crossings)} vectors over")
    assert all(len(line) <= 160 for line in describe.timeline(found).splitlines())
