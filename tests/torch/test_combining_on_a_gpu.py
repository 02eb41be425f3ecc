"""Launches of Inductor's on a GPU: apart, as one, and as one in a CUDA graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fusiond[torch]'")

from fusiond.cuda.recording import groups  # noqa: E402
from fusiond.service.frameworks.region_answers import FusionOptions  # noqa: E402
from fusiond.torch import combining  # noqa: E402
from fusiond.torch.explaining import CompiledGraphs  # noqa: E402

from .combined import adam, adams, norms  # noqa: E402

pytestmark = [pytest.mark.needs_gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["norms", "adam"])
def test_values(name: str, captured: bool, tmp_path: Path) -> None:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    groups.forget()
    torch._dynamo.reset()
    function, inputs = {"norms": (norms, [torch.rand(6, 100), torch.rand(4, 33), torch.rand(5, 70)]),
                        "adam": (adam, adams())}[name]  # fmt: skip
    record = CompiledGraphs(None)
    options = FusionOptions(always=True, block=True, search={"trials": 4}, device=None, db=tmp_path / "store.sqlite")

    def backend(graph: Any, examples: Any) -> Any:
        return compile_fx(graph, examples, inner_compile=combining.compiler(options, record))

    with config.patch({"triton.cudagraphs": captured}):
        compiled = torch.compile(function, backend=backend)
        for _ in range(6):
            given = [torch.rand_like(each, device="cuda") for each in inputs]
            expected = [each.clone() for each in given]
            found, wanted = compiled(*given), function(*expected)
            for one, other in zip([*found, *given], [*wanted, *expected], strict=True):
                torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)
    regions = [region for each in record.graphs for region in each()]
    assert regions
    assert {each.state for each in regions} == {"fused"}, [each.reason for each in regions]
