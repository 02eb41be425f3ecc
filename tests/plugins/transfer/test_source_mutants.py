"""Renaming, element types and mapped memory broken on purpose, a line at a time: their tests must fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fusiond_transfer

HERE = Path(__file__).parent
MUTANTS = [
    # file, what stands there, what is put there, the tests that see it
    ("frontend/single_assignment.py", "now.update(after)", "pass", "elements"),
    ("frontend/single_assignment.py", "before.get(word[0], word[0])", "word[0]", "elements"),
    ("frontend/single_assignment.py", "outputs=tuple(now.get(name, name) for name in graph.outputs)",
     "outputs=graph.outputs", "elements"),
    ("frontend/single_assignment.py", "if each not in taken", "if True", "elements"),
    ("codegen/elements.py", "((rest >> 13) & 1u)", "1u", "elements"),
    ("codegen/elements.py", "((bits >> 16) & 1u)", "0u", "elements"),
    ("codegen/elements.py", "rest < 0x38800000u", "rest < 0x38000000u", "elements"),
    ("analysis/cost.py", "at_host[name] = at_device[name] = end", "at_device[name] = end", "cost"),
    ("analysis/cost.py", "message.vectors if name not in costs.mapped)", "message.vectors)", "cost"),
    ("analysis/memory_costs.py", "- startup", "", "cost"),
    ("codegen/probes.py", "Memory.PINNED if name in mapped else memory", "memory", "cost"),
    ("analysis/mapped_or_managed.py", " if touches[name] == 1", "", "one_memory"),
    ("analysis/mapped_or_managed.py", "host=True, device=False, managed=managed", "", "one_memory"),
    ("analysis/mapped_or_managed.py", "graph.loop or graph.shares_storage or", "graph.loop or", "one_memory"),
    ("analysis/mapped_or_managed.py", "is _made_on_device(graph, name) for k", "for k", "one_memory"),
    ("analysis/mapped_or_managed.py", "(*homes, *ops)", "tuple(ops)", "one_memory"),
    ("analysis/mapped_or_managed.py", "up=not op.up", "up=op.up", "one_memory"),
    ("frontend/sub_vectors.py", "own.first <= each.first < own.end", "own.first <= each.first", "sub_vectors"),
    ("frontend/sub_vectors.py", "for each in cut if each.vector.name not in beside", "for each in ()", "sub_vectors"),
    ("analysis/layout.py", "length = lead % ALIGNMENT if lead else 0", "length = 0", "layout"),
    ("codegen/emit.py", "self._side(op, cells[0], cells[0])", "self._side(op, cells[0], cells[-1])", "sub_vectors"),
    ("codegen/emit.py", "                writes=op.cells,\n", "", "one_memory"),
    ("analysis/row_lines.py", "if int(there) != int(start):", "if False:", "chunks"),
    ("analysis/chunks.py", "rest += share", "rest = share", "chunks"),
    ("codegen/buffers.py", "for each in bounds[first:last])", "for each in [at])", "chunks"),
    ("codegen/buffers.py", "with_others.get(name, (name,))", "(name,)", "sub_vectors"),
    ("analysis/eviction.py", "if graph.cell[old] in there and new in uses.of:", "if False:", "limited_cells"),
    ("analysis/eviction.py", "here = stays[0] if placed else", "here = stays[-1] if placed else", "limit"),
    ("analysis/limit.py", "> limit:", "> 2 * limit:", "limited_cells"),
    ("codegen/emit.py", 'leaving=execution.allocation != "one"', "leaving=True", "limited_cells"),
    ("delegation.py", "for reader in graph.readers[old]", "for reader in ()", "delegation"),
    ("analysis/heuristic.py", "siblings and a.latest == b.latest", "siblings", "interval_stabbing"),
]  # fmt: skip


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_a_broken_line_is_seen(number: int, tmp_path: Path) -> None:
    file, old, new, tests = MUTANTS[number]
    package = tmp_path / "fusiond_transfer"
    shutil.copytree(Path(fusiond_transfer.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / file).read_text()
    assert text.count(old) >= 1, f"{file} no longer has {old!r}"
    (package / file).write_text(text.replace(old, new))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, str(HERE / f"test_{tests}.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
        cwd=HERE.parents[2],
    )  # fmt: skip
    assert found.returncode == 1, found.stdout[-2000:] + found.stderr[-500:]
    assert "no longer has" not in found.stdout
