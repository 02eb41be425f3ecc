"""What formulas compute, as g++ builds them for the host, against Python's own arithmetic of doubles."""

from __future__ import annotations

import ctypes
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusiond.model.nouns import Workload
from fusiond_transfer.codegen import body


def _formula(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["a", "a", "b", "b", "3", "010", "0.1", "2.5e-1"])
    one, two = (_formula(draw, draw.randrange(depth)) for _ in range(2))
    kinds = [f"{one} + {two}", f"{one} - {two}", f"({one}) * ({two})", f"{one} - ({two})", f"{one} * {two}"]
    kinds += [f"min({one}, {two})", f"max({one}, {two})", f"-({one})", f"abs({one})", f"sqrt(abs({one}))"]
    return draw.choice([*kinds, f"({one}) / (3 + abs({two}))"])


def test_formulas_mean_what_python_reads(parse: Callable[..., Workload], tmp_path: Path, gxx_here: None) -> None:
    formulas = [_formula(random.Random(seed), 4) for seed in range(60)]
    names = [f"k{number}" for number in range(len(formulas))]
    vectors = "".join(f"  {name}: {{elements: 4, dtype: float64}}\n" for name in ("a", "b", *names))
    kernels = "".join(
        f'  - {{name: {name}, on: host, reads: [a, b], writes: [{name}], body: "{text}"}}\n'
        for name, text in zip(names, formulas, strict=True)
    )
    head = f"inputs: [a, b]\noutputs: [{', '.join(names)}]\n"
    graph = parse(f"graph: formulas\nvectors:\n{vectors}{head}kernels:\n{kernels}").payload.graph
    (source,) = body.code(graph).sources
    (tmp_path / "formulas.cpp").write_text(source.text)
    out = tmp_path / "formulas.so"
    flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["g++", *flags, str(tmp_path / "formulas.cpp"), "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))
    a, b = np.array([0.3, -7.25, 1e3, 0.0]), np.array([-2.0, 0.7, 3.0, -0.0])
    for name, text in zip(names, formulas, strict=True):
        found = np.empty(4)
        getattr(library, f"formula_{name}")(*(ctypes.c_void_p(each.ctypes.data) for each in (a, b, found)), 4)
        python = compile(text.replace("010", "10"), name, "eval")
        known = {"min": min, "max": max, "abs": abs, "sqrt": math.sqrt}
        values = [eval(python, known, {"a": x, "b": y}) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_array_equal(found, values, err_msg=text)
