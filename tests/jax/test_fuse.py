"""Functions that are fused give what they gave, on JAX's cpu platform through XLA's FFI; nothing is slower or broken
meanwhile."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")
import jax.numpy as jnp  # noqa: E402

import fusiond.jax as fused  # noqa: E402
from fusiond.jax import regions  # noqa: E402
from fusiond.service.frameworks import region_answers  # noqa: E402
from fusiond.service.frameworks.region_answers import Found  # noqa: E402
from tests.service.frameworks.answered import emitted  # noqa: E402


def normal(*shape: int, seed: int = 0) -> Any:
    return jax.random.normal(jax.random.PRNGKey(seed), shape)


def layer(parameters: dict[str, Any], x: Any) -> tuple[Any, dict[str, Any]]:
    """A dot between two regions; pytrees in and out."""
    hidden = jax.nn.gelu(x @ parameters["w"] + parameters["b"])
    weights = jax.nn.softmax(hidden, axis=-1)
    return jnp.sum(weights * hidden), {"hidden": jax.nn.relu(hidden) * 2, "largest": hidden.max(0)}


PARAMETERS = {"w": normal(12, 40), "b": normal(40, seed=1)}
X = normal(9, 12, seed=2)


def same(got: Any, wanted: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (other.shape, other.dtype, other.weak_type)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def states(report: fused.Report) -> list[str]:
    return [each.state for each in report.regions]


@pytest.mark.slow
def test_a_function_is_fused_and_gives_what_it_gave(answered: Callable[..., Any], db: Path) -> None:
    asked = answered()
    function = fused.fuse(layer, always=True, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    assert "fusiond_region" in function.lower(PARAMETERS, X).as_text()
    report = fused.explain(function, PARAMETERS, X)
    assert states(report) == ["library", "fused"]
    assert "dot_general" in report.regions[0].primitives
    assert report.regions[1].speedup == 1.5
    assert "1.50x its unfused kernels (emulated)" in str(report)
    assert {each.name for each in asked} == {"layer_1"}


@pytest.mark.slow
def test_it_stands_inside_of_every_transformation(answered: Callable[..., Any], db: Path) -> None:
    answered()
    function = fused.fuse(layer, always=True, db=db)
    same(
        jax.grad(lambda *given: function(*given)[0])(PARAMETERS, X),
        jax.grad(lambda *given: layer(*given)[0])(PARAMETERS, X),
    )
    several = jnp.stack([X, 2 * X])
    same(jax.vmap(function, (None, 0))(PARAMETERS, several), jax.vmap(layer, (None, 0))(PARAMETERS, several))
    same(
        jax.jit(lambda p, x: function(p, x)[0] * 2)(PARAMETERS, X),
        jax.jit(lambda p, x: layer(p, x)[0] * 2)(PARAMETERS, X),
    )
    looped = jax.lax.scan(lambda c, x: (c + function(PARAMETERS, x[None])[0], c), 0.0, X)
    same(looped, jax.lax.scan(lambda c, x: (c + layer(PARAMETERS, x[None])[0], c), 0.0, X))


def test_what_is_differentiated_is_fused(answered: Callable[..., Any], db: Path) -> None:
    answered()
    step = fused.fuse(jax.grad(lambda p, x: layer(p, x)[0]), always=True, db=db)
    same(step(PARAMETERS, X), jax.jit(jax.grad(lambda p, x: layer(p, x)[0]))(PARAMETERS, X))
    assert states(fused.explain(step, PARAMETERS, X)).count("fused") >= 1


def test_options_of_jit(answered: Callable[..., Any], db: Path) -> None:
    answered()

    @partial(fused.fuse, always=True, db=db, static_argnums=1, static_argnames="scale", donate_argnums=0)
    def scaled(x: Any, axis: int, *, scale: float = 2.0) -> Any:
        return jax.nn.softmax(x * scale, axis) + jnp.exp(-x)

    for axis, scale in ((0, 2.0), (1, 3.0)):
        wanted = jax.nn.softmax(X * scale, axis) + jnp.exp(-X)
        np.testing.assert_allclose(scaled(X + 0, axis, scale=scale), wanted, rtol=2e-5)
    assert states(fused.explain(scaled, X, 1, scale=2.0)) == ["fused"]
    assert scaled.__name__ == "scaled"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool"])
def test_types_and_weak_types(answered: Callable[..., Any], db: Path, dtype: str) -> None:
    answered()

    def mixed(x: Any, by: Any) -> Any:
        wide = x.astype("float32") * by + 1
        return (wide > 1).sum(), jnp.where(wide > 0, x, x), by * 2, wide.astype("bfloat16") / 3

    x = (X * 10).astype(dtype)
    same(fused.fuse(mixed, always=True, db=db)(x, 3), jax.jit(mixed)(x, 3))


def test_methods_constants_and_functions_that_compute_nothing(answered: Callable[..., Any], db: Path) -> None:
    answered()
    table = jnp.arange(40.0)

    class Model:
        @partial(fused.fuse, always=True, db=db)
        def __call__(self, x: Any) -> Any:
            return jnp.tanh(x @ PARAMETERS["w"] + table).sum(-1) * jnp.ones((3, 1)), table

    unfused = jax.jit(lambda x: (jnp.tanh(x @ PARAMETERS["w"] + table).sum(-1) * jnp.ones((3, 1)), table))
    holder = fused.fuse(
        lambda x: (jnp.tanh(x @ PARAMETERS["w"] + table).sum(-1) * jnp.ones((3, 1)), table), always=True, db=db
    )
    del Model
    same(holder(X), unfused(X))
    nothing = fused.fuse(lambda x, y: (y, x, 3.0), always=True, db=db)
    same(nothing(X, 2), jax.jit(lambda x, y: (y, x, 3.0))(X, 2))


def test_without_always_nothing_emulated_is_used(answered: Callable[..., Any], db: Path) -> None:
    answered()
    function = fused.fuse(layer, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    assert "fusiond_region" not in function.lower(PARAMETERS, X).as_text()
    assert "always=True" in fused.explain(function, PARAMETERS, X).regions[1].reason


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (Found(state="unknown", reason="nothing is known yet"), "unknown", "nothing is known yet"),
        (Found(state="refused", reason="no such type"), "refused", "no such type"),
        (Found(state="keep", evidence="measured"), "kept", "there is no fused program"),
    ],
)
def test_what_is_not_fused_is_as_it_was(
    answered: Callable[..., Any], db: Path, found: Found, state: str, reason: str
) -> None:
    answered(lambda question: found)
    function = fused.fuse(layer, always=True, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    (region,) = (each for each in fused.explain(function, PARAMETERS, X).regions if each.state != "library")
    assert (region.state, region.reason) == (state, reason)


def test_an_answer_is_taken_up_without_a_restart(
    answered: Callable[..., Any], db: Path, nothing_is_handed_in: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is handed in once, however often it is called; then the store changes."""
    monkeypatch.setattr(region_answers, "POLL_SECS", 0.05)
    known: list[bool] = []
    answered(lambda question: emitted(question) if known else Found(state="unknown"))
    function = fused.fuse(layer, always=True, db=db)
    wanted = jax.jit(layer)(PARAMETERS, X)
    for _ in range(3):
        same(function(PARAMETERS, X), wanted)
    assert "fusiond_region" not in function.lower(PARAMETERS, X).as_text()
    known.append(True)
    db.write_bytes(b"")  # the store changes
    late = time.monotonic() + 60
    while "fusiond_region" not in function.lower(PARAMETERS, X).as_text():
        assert time.monotonic() < late
        time.sleep(0.05)
    same(function(PARAMETERS, X), wanted)
    assert len({each.digest for each in nothing_is_handed_in}) == 1


def test_whatever_fails_the_function_is_as_it_was(answered: Callable[..., Any], db: Path) -> None:
    def broken(question: Any) -> Found:
        raise RuntimeError("a plugin's mistake")

    answered(broken)
    function = fused.fuse(layer, always=True, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    with pytest.raises(ZeroDivisionError):  # the user's own mistakes stay what they are
        fused.fuse(lambda x: x / (1 // 0), always=True, db=db)(X)


def test_code_that_cannot_be_loaded_is_not_launched(
    answered: Callable[..., Any], db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusiond.service.frameworks import launching

    answered()
    right = launching.built_for_cpu
    monkeypatch.setattr(launching, "built_for_cpu", lambda program: (right(program)[0], ("nothing",)))
    function = fused.fuse(layer, always=True, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    report = fused.explain(function, PARAMETERS, X)
    assert "has no fusiond_entry_nothing" in report.regions[-1].reason


def test_off(answered: Callable[..., Any], db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answered()
    monkeypatch.setenv("FUSIOND", "off")
    function = fused.fuse(layer, always=True, db=db)
    same(function(PARAMETERS, X), jax.jit(layer)(PARAMETERS, X))
    assert asked == []


def test_threads(answered: Callable[..., Any], db: Path) -> None:
    answered()
    function = fused.fuse(layer, always=True, db=db)
    wanted = jax.jit(layer)(PARAMETERS, X)
    problems: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(20):
                same(function(PARAMETERS, X), wanted)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    function.renew()
    for each in threads:
        each.join()
    assert problems == []


@pytest.mark.slow
def test_an_export_is_read_by_another_process(answered: Callable[..., Any], db: Path, tmp_path: Path) -> None:
    """Which has never fused anything, and no store."""
    pytest.importorskip("flatbuffers", reason="jax.export writes with flatbuffers: pip install 'fusiond[jax]'")
    answered()
    exported = fused.export(fused.fuse(lambda x: jax.nn.softmax(x) * 2 + 1, always=True, db=db))(X)
    assert "fusiond_region" in exported.mlir_module()
    (tmp_path / "x.bin").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", X)
    code = f"""
import jax, numpy as np, fusiond.jax
from pathlib import Path
folder = Path({str(tmp_path)!r})
x = np.load(folder / "x.npy")
read = fusiond.jax.deserialize((folder / "x.bin").read_bytes())
np.testing.assert_allclose(read.call(x), jax.nn.softmax(x) * 2 + 1, rtol=1e-5)
"""
    _run(code, {"JAX_PLATFORMS": "cpu"})


def test_a_decorator_starts_no_backend() -> None:
    _run(
        "import jax, fusiond.jax as fused\nfused.fuse(lambda x: x)\n"
        "from jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()",
        {},
    )


def test_importing_it_loads_nothing_heavy() -> None:
    _run("import sys, fusiond.jax; assert not {'jax', 'numpy', 'fusiond_stitching', 'httpx'} & set(sys.modules)", {})


def _run(code: str, environment: dict[str, str]) -> None:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- regions --------------------------------------------------------------------------------------------


def segments(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, bool]]:
    cut = regions.cut(jax.make_jaxpr(function)(*arguments))
    return [("+".join(each.primitives), each.fusable) for each in cut.segments]


def test_what_stitching_reads_in_some_forms_is_shown_to_it() -> None:
    """Sorts and top-k of short rows, random bits, branches, loops."""

    def function(x: Any, key: Any) -> Any:
        x = jnp.sort(x) + jax.random.uniform(key, x.shape)
        x = jax.lax.cond(x.ndim > 1, lambda x: x * 2, lambda x: x, x)
        return jax.lax.top_k(x, 3)

    ((names, fusable),) = segments(function, X, jax.random.key(1))
    assert fusable
    assert {"sort", "random_bits", "top_k"} <= set(names.split("+"))
    (library,) = regions.cut(jax.make_jaxpr(lambda x: jnp.sort(x.reshape(-1)))(normal(9, 200))).segments[-1:]
    assert not library.fusable
    assert "sort" in library.reason


def test_a_small_convolution_is_no_librarys() -> None:
    taps = jnp.outer(jnp.array([1.0, 2.0, 1.0]), jnp.array([1.0, 2.0, 1.0])) / 16

    def blurred(image: Any) -> Any:
        return jax.lax.conv_general_dilated(image[None, None], taps[None, None], (1, 1), "SAME")[0, 0]

    cut = regions.cut(jax.make_jaxpr(lambda x: blurred(blurred(x) ** 2))(normal(9, 9)))
    assert [each.fusable for each in cut.segments] == [True]
    assert [each.aval.shape for each in cut.segments[0].inputs] == [(9, 9)]  # the taps are in the text
    assert [fusable for _, fusable in segments(blurred, normal(9, 9))] == [True]
    wide = jnp.ones((2, 2, 3, 3))
    many = segments(lambda x: jnp.sin(jax.lax.conv_general_dilated(x, wide, (1, 1), "SAME")) * 2, normal(1, 2, 9, 9))
    assert many == [("conv_general_dilated", False), ("sin+mul", True)]


def test_equal_steps_of_an_unrolled_loop_are_one_question(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[str] = []

    def tune(self: Any, question: region_answers.Question, search: Any = None) -> region_answers.Found:
        tuned.append(question.name)
        return region_answers.Found(state="refused", reason="a test")

    def steps(x: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ x) * jax.nn.sigmoid(x @ x)
        return x

    monkeypatch.setattr(region_answers.Asker, "tune", tune)
    square = X[:2, :2]
    same(fused.fuse(steps, block=True, always=True, db=db)(square), jax.jit(steps)(square))
    assert len(tuned) == 1


# --- threads that nobody waits for ----------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_compiled_by_the_caller(
    answered: Callable[..., Any], db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an answer whose code the build cache has lost: handler, runtime, kernels."""
    from fusiond.build import compiler
    from fusiond.jax import fusing

    monkeypatch.setattr(region_answers, "POLL_SECS", 0.05)
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "swept"))
    monkeypatch.setattr(fusing.Fused, "_now", lambda self, asker: asker.in_background)
    compiling: list[int] = []
    may_run = compiler.may_run

    def asked(tool: str) -> None:
        may_run(tool)
        compiling.append(threading.get_ident())

    monkeypatch.setattr(compiler, "may_run", asked)
    answered()
    function = fused.fuse(layer, always=True, db=db)
    wanted = jax.jit(layer)(PARAMETERS, X)
    same(function(PARAMETERS, X), wanted)
    first = str(fused.explain(function, PARAMETERS, X))
    late = time.monotonic() + 60
    while "fusiond_region" not in function.lower(PARAMETERS, X).as_text():
        assert time.monotonic() < late
        time.sleep(0.05)
    same(function(PARAMETERS, X), wanted)
    assert "unknown: its code is being built" in first or "fused" in first
    assert compiling
    assert threading.get_ident() not in compiling


@pytest.mark.slow
def test_a_process_may_end_while_an_answer_is_being_compiled(tmp_path: Path) -> None:
    """XLA aborts a process whose interpreter ends below it."""
    code = f"""
import threading, jax, jax.numpy as jnp, fusiond.jax
from fusiond.service.frameworks import region_answers
region_answers.POLL_SECS = 0.05
region_answers.Asker._submit = lambda self, question: None
found = []
region_answers.Asker.look = lambda self, question: region_answers.Found(state="keep" if found else "unknown")
def f(x):
    for _ in range(75):
        x = jnp.tanh(x @ x) + jnp.sin(x)
    return x
began, renew = threading.Event(), fusiond.jax.Fused.renew
def renewed(self):
    began.set()
    renew(self)
fusiond.jax.Fused.renew = renewed
fusiond.jax.fuse(f, always=True, device="cpu", db={str(tmp_path / "db")!r})(jnp.ones((16, 16)))
found.append(True)
open({str(tmp_path / "db")!r}, "w").write("changed")
assert began.wait(60)
threading.Event().wait(0.3)
"""
    _run(code, {"JAX_PLATFORMS": "cpu"})


@pytest.mark.slow
def test_arrays_on_several_devices_are_left_to_xla_inside_of_another_function() -> None:
    code = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import fusiond.jax as fused
from fusiond.service.frameworks import region_answers
from tests.service.frameworks.answered import emitted
region_answers.Asker.look = lambda self, question: emitted(question)
function = fused.fuse(lambda x: jax.nn.softmax(x) * 2 + 1, always=True, db="/nonexistent/store.sqlite")
outer = jax.jit(lambda x: function(x) + 1)
mesh = Mesh(jax.devices(), "i")
x = jax.device_put(np.ones((8, 4), "float32"), NamedSharding(mesh, PartitionSpec("i")))
assert "fusiond_region" not in outer.lower(x).as_text()
assert outer(x).sharding.spec == PartitionSpec("i")
assert "fusiond_region" in outer.lower(np.ones((8, 4), "float32")).as_text()
each = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i")))
assert "fusiond_region" in each.lower(x).as_text()
np.testing.assert_allclose(each(x), jax.nn.softmax(x) * 2 + 1, rtol=1e-5)
"""
    _run(code, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
