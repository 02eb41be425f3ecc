"""benchmarks/judging: right kernels rewritten mechanically, and the page about what the referee says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.judging import forms, page
from fusiond.errors import RequestError

KERNEL = """\
__device__ void other(const float* x) { for (;;) {} }
__global__ void scale(const float* x, float *y, int n) {
#pragma unroll 8
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    for (int j = 0; j < 2; j++) y[i] = x[i];
  }
}
"""


def test_pointers_become_restrict_and_cease_to_be() -> None:
    once = forms.restricted(KERNEL, "scale")
    assert "void scale(const float* __restrict__ x, float * __restrict__ y, int n)" in once
    assert "other(const float* x)" in once
    assert "__restrict__" not in forms.restricted(once, "ops::scale")


def test_every_loop_of_the_kernel_gets_the_factor() -> None:
    found = forms.unrolled(KERNEL, "scale", 4)
    assert found.count("#pragma unroll 4\n") == 2
    assert "#pragma unroll 8" not in found
    assert found.splitlines()[0] == KERNEL.splitlines()[0]


def test_a_kernel_that_is_not_there_is_said() -> None:
    with pytest.raises(RequestError, match="no kernel 'twice'"):
        forms.restricted(KERNEL, "twice")


def test_the_catalogue_has_every_kernel_in_four_forms_or_five(tmp_path: Path) -> None:
    found = list(forms.catalogue(tmp_path))
    names = {path.stem for path in forms.KERNELS.glob("*.yaml")}
    assert {each.name for each in found} == names
    assert all(4 <= sum(each.name == name for each in found) <= 5 for name in names)
    assert all(each.reference.is_file() and each.second.is_file() for each in found)


def test_a_corpus_is_folders_of_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "second.yaml").touch()
    (tmp_path / "origin.json").write_text(json.dumps({"forms": {"b": "unrolled"}}))
    assert [(each.name, each.form) for each in forms.foreign(tmp_path)] == [("a", "another version"), ("b", "unrolled")]
    with pytest.raises(RequestError, match="no folders"):
        list(forms.foreign(tmp_path / "a"))


def test_the_page_counts_and_names_what_is_not_right() -> None:
    rows = [
        {"kernel": "a", "origin": "foreign", "form": "unrolled", "right": True, "problem": None},
        {"kernel": "b", "origin": "foreign", "form": "unrolled", "right": False, "problem": "y[3] | is 1"},
        {"kernel": "c", "origin": "catalogue", "form": "itself", "right": None, "problem": "does not compile"},
        {
            "kernel": "d",
            "origin": "foreign",
            "form": "unrolled",
            "right": False,
            "problem": "race",
            "mistake": "no wait",
        },
    ]
    run = {
        "evidence": "static", "date": "2026-11-29T00:00:00", "command": "python -m benchmarks.judging", "nvcc": "13.0",
        "device": {"model": None}, "machine": {"cores": 2, "processor": "x86_64"},
        "origin": {"repositories": [{"name": "who/what", "commit": "0123456789abcdef", "pairs": 2}]},
        "rows": [{"mistake": "", "secs": 3.0, "again_secs": 1.0} | each for each in rows],
    }  # fmt: skip
    text = page.render([run])
    assert "| foreign | unrolled | 3 | 1 | 2 | 0 |" in text
    assert "| all |  | 4 | 1 | 2 | 1 |" in text
    assert "| d | no wait | race |" in text
    assert "| d | unrolled" not in text
    assert "| b | unrolled | y[3] \\| is 1 |" in text
    assert "| c | itself | does not compile |" in text
    assert "| again | 1.0 | 1.0 | 1.0 |" in text
    assert "| who/what | 0123456789 | 2 |" in text
