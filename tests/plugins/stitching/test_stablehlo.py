"""StableHLO is read as the HLO text that jax prints of the same function."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.requests.planning import prepare
from fusiond_stitching.frontend import importer, stablehlo

jax = pytest.importorskip("jax", reason="StableHLO is read through jaxlib")
import jax.numpy as jnp  # noqa: E402

from .jobs import job, registry  # noqa: E402


def lowered() -> Any:
    table = np.arange(300, dtype=np.float32).reshape(3, 100)

    def function(x: Any, y: Any) -> Any:
        return jax.nn.softmax(x @ y + table, axis=-1).astype(jnp.bfloat16), jnp.max(x)

    return jax.jit(function).lower(jnp.zeros((3, 8)), jnp.zeros((8, 100)))


def test_it_is_what_hlo_says() -> None:
    text = lowered().as_text()
    assert stablehlo.is_text(text)
    wanted = importer.read(lowered().as_text(dialect="hlo"), "m.hlo")
    found = importer.read(stablehlo.to_hlo(text, "m.mlir"), "m.mlir")
    one, other = ([(each.opcode, each.dtype, each.dims) for each in made.instructions] for made in (found, wanted))
    assert one == other
    assert "299" in stablehlo.to_hlo(text, "m.mlir")  # the last element of a large constant


def test_a_job_takes_it_from_a_file_and_inline(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(f"// printed by jax\n{lowered().as_text()}")
    inline = "module: |\n" + "\n".join(f"  {line}" for line in lowered().as_text().splitlines())
    keys = {
        prepare(registry(), job(text, str(tmp_path / "job.yaml"))).workload.content_key
        for text in ("module: ./m.mlir", inline)
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("stablehlo.add", "stablehlo.ad"), "jaxlib cannot read this module"),
        (lambda text: text.replace("dense<", "dense_resource<__elided__> // <", 1), "its large constants are not"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(change: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as found:
        stablehlo.to_hlo(change(lowered().as_text()), "m.mlir")
    assert "\n" not in str(found.value)
    assert str(found.value).startswith("m.mlir: ")


def test_without_jaxlib_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stablehlo, "_converter", lambda: None)
    with pytest.raises(RequestError, match="pip install jaxlib, or print HLO text instead"):
        stablehlo.to_hlo(lowered().as_text(), "m.mlir")


@pytest.mark.parametrize("text", ["HloModule m\n", "int main() {}", "", "modules", "// module\nHloModule m"])
def test_what_is_no_mlir_is_read_as_before(text: str) -> None:
    assert not stablehlo.is_text(text)
