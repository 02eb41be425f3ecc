"""`fuse`: a jitted function whose regions run as measured kernels where there are answers (see the package)."""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.extend import core

from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Asker, Found, FusionOptions, Question
from fusiond.service.frameworks.regions import Region, Report

log = logging.getLogger("fusiond.jax")

MOST_SHAPES = 64  #: Of a function, that are compiled before an answer is taken up; others are when they come again


class Fused:
    """A function in the place of `jax.jit(f)`. What a call costs more than that is the call of this object."""

    def __init__(self, function: Callable[..., Any], options: FusionOptions, jit: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options, self._jit = function, options, dict(jit)
        self._lock = threading.Lock()
        self._plain = jax.jit(function, **jit)
        self._waiting: set[str] = set()
        self._codes: dict[str, tuple[Region, Any]] = {}  #: What was decided of a region, by its text, until `renew`
        self._seen: dict[Any, tuple[Any, Any]] = {}  #: The shapes of arguments that were traced
        self._several: bool | None = None
        """Whether there are several devices; asked at the first call, since a decorator must start no backend."""
        self._current: Any = self._made() if region_answers.enabled() else self._plain

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._several is None:
            self._several = jax.device_count() > 1
        if self._several and _spread((arguments, named)):
            return self._plain(*arguments, **named)  # a region knows nothing of shards
        try:
            return self._current(*arguments, **named)
        except jax.errors.JaxRuntimeError as problem:
            if "fusiond: " not in str(problem):
                raise
            log.warning("%s is not fused any more: %s", self._name, problem)
            self._current = self._plain
            return self._plain(*arguments, **named)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """As `jax.jit(f).lower`, of the function as it is fused now."""
        return self._current.lower(*arguments, **named)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def renew(self) -> None:
        """Take up what is known by now, for the next call. All shapes that were seen are compiled before, in this
        thread, so that such a call only traces."""
        with self._lock:
            self._codes.clear()
            made, seen = self._made(), list(self._seen.values())
            for arguments, named in seen:
                if region_answers.ending():
                    return
                made.lower(*arguments, **named).compile()
            self._current = made

    # --- inside ---

    def _made(self) -> Any:
        """The jitted function; each trace of it asks anew."""

        @functools.wraps(self._function)
        def fused(*arguments: Any, **named: Any) -> Any:
            self._remember(arguments, named)
            closed, given, structure = _traced(self._function, arguments, named)
            try:
                results = self._evaluated(closed, given)
            except Exception:  # whatever is wrong here, the function is as it was
                log.warning("%s is not fused", self._name, exc_info=True)
                results = core.jaxpr_as_fun(closed)(*given)
            return jax.tree.unflatten(structure, results)

        return jax.jit(fused, **self._jit)

    def _remember(self, *call: Any) -> None:
        def described(leaf: Any) -> Any:
            if not isinstance(leaf, jax.core.Tracer):
                return leaf
            aval: Any = leaf.aval
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)

        shapes = jax.tree.map(described, call)
        if len(self._seen) < MOST_SHAPES:
            self._seen[str(shapes)] = shapes

    @property
    def _name(self) -> str:
        name = getattr(self._function, "__name__", "function")
        return "".join(each if each.isalnum() and each.isascii() else "_" for each in name)[:40] or "function"

    def _evaluated(self, closed: core.ClosedJaxpr, flat: Sequence[Any]) -> list[Any]:
        from fusiond.jax import lowering, regions

        cut = regions.cut(closed)
        codes = self._codes_of(cut)
        if cut.changed and not any(each.loops for each, code in zip(cut.segments, codes, strict=True) if code):
            cut = regions.cut(closed, products_apart=False)  # XLA's loops are as they were written
            codes = self._codes_of(cut)
        values: dict[core.Var, Any] = dict(zip(cut.inputs, flat, strict=True)) | dict(cut.constants)
        for segment, code in zip(cut.segments, codes, strict=True):
            given = [values[each] for each in segment.inputs]
            given = [lowering.numbers(each) for each in given] if segment.fusable else given
            if code is None:
                made = core.jaxpr_as_fun(segment.jaxpr)(*given)
            else:
                from fusiond.jax import ffi

                made = ffi.region(segment.jaxpr, code, given)
            made = lowering.wrapped(made, [each.aval for each in segment.outputs]) if segment.fusable else made
            values |= dict(zip(segment.outputs, made, strict=True))
        return [each.val if isinstance(each, core.Literal) else values[each] for each in cut.outputs]

    def _codes_of(self, cut: Any) -> list[Any]:
        """How each region is launched; None where XLA computes it."""
        judged = [(self._judged(at, each, ask=True) if each.fusable else None) for at, each in enumerate(cut.segments)]
        for each in filter(None, judged):
            log.info("%s", each[0])
        return [each and each[1] for each in judged]

    def _judged(self, number: int, segment: Any, *, ask: bool) -> tuple[Region, Any]:
        from fusiond.jax import lowering, regions

        name = f"{self._name}_{number}"
        region = Region(name=name, state="library", reason=segment.reason, operators=segment.primitives)
        if not segment.fusable:
            small = not segment.reason and regions.FUSABLE.issuperset(segment.primitives)
            return replace(region, reason="too little to fuse") if small else region, None
        platform = _platform()
        if platform is None:
            return replace(region, state="refused", reason=f"no kernels for {jax.default_backend()}"), None
        if platform == "cpu" and not self._options.always:
            reason = "kernels for a processor are for trying out: always=True"
            return replace(region, state="refused", reason=reason), None
        device = self._options.device or _device(platform)
        question = Question(name, lowering.hlo(name, segment.jaxpr), device, self._options.search)
        if ask and question.digest in self._codes:
            known, code = self._codes[question.digest]
            return replace(known, name=name, operators=segment.primitives), code
        decided = self._decided(region, question, segment, platform, ask=ask)
        if ask:
            self._codes[question.digest] = decided
        return decided

    def _decided(
        self, region: Region, question: Question, segment: Any, platform: str, *, ask: bool
    ) -> tuple[Region, Any]:
        asker = region_answers.of(self._options.db)
        found = asker.found(question, self._options) if ask else asker.look(question)
        unknown = found.state == "unknown"
        if not unknown:
            if self._now(asker) or not found.usable(self._options):
                return self._taken(region, found, segment, platform)
            from fusiond.build import compiler

            with contextlib.suppress(compiler.NotBuilt), compiler.from_cache_only():
                return self._taken(region, found, segment, platform)
        if ask:
            self._want(asker, question, known=not unknown)
        reason = found.reason or asker.standing(question) if unknown else "its code is being built"
        return replace(region, state="unknown", reason=reason), None

    def _now(self, asker: Asker) -> bool:
        """Whether this thread may compile: nobody waits for it, or whoever waits has asked for that."""
        return self._options.block or self._options.always or asker.in_background

    def _taken(self, region: Region, found: Found, segment: Any, platform: str) -> tuple[Region, Any]:
        from fusiond.service.frameworks.launching import Unusable

        if not found.usable(self._options):
            state, reason = found.why_not(self._options, "XLA's is")
            return replace(region, state=state, reason=reason), None
        assert found.program is not None
        try:
            from fusiond.jax import ffi

            ffi.register(platform)
            code = ffi.launched(found.program, len(segment.inputs), len(segment.outputs), platform, found.arch)
        except Unusable as problem:
            return replace(region, state="refused", reason=str(problem)), None
        more = "" if found.speedup else "its loops are a launch each, and fusing more gains nothing"
        return replace(region, state="fused", reason=more, speedup=found.speedup, evidence=found.evidence), code

    def _want(self, asker: Asker, question: Question, *, known: bool = False) -> None:
        if question.digest in self._waiting:
            return
        self._waiting.add(question.digest)
        asker.want(question, region_answers.weakly(self._answered, question.digest), known=known)

    def _answered(self, digest: str) -> None:
        self._waiting.discard(digest)
        self.renew()


def fuse(
    function: Callable[..., Any] | None = None,
    *,
    block: bool = False,
    always: bool = False,
    search: Mapping[str, Any] | None = None,
    device: str | None = None,
    db: Path | str | None = None,
    **jit: Any,
) -> Any:
    """A function as `jax.jit` makes it, whose element-wise work, reductions and movements run as measured kernels.

    Each trace asks the store for the regions between library calls. What is known to be faster is launched through
    XLA's FFI; what is unknown runs as XLA has it, and is handed to the daemon, if one is there; the function is traced
    again once there is an answer. Whatever fails leaves the function as it was.

    block: tune here and now, without a daemon, what is unknown.
    search: how, as in a job (`{"trials": 20}`), here or by the daemon.
    always: run our kernels whatever the verdict, emulated ones on a processor too: for scripts and tests.
    device: as a job names it; else the GPU that JAX uses. db: another store than the user's.
    Everything else is handed to `jax.jit`: static_argnums, static_argnames, donate_argnums, ...

    ValueError for a `search` or a `device` that a job could not have."""
    region_answers.check_options(search, device)
    options = FusionOptions(block=block, always=always, search=search, device=device, db=db)
    if function is None:
        return lambda given: Fused(given, options, jit)
    if isinstance(function, Fused):
        return function
    return Fused(function, options, jit)


def explain(function: Fused, *arguments: Any, **named: Any) -> Report:
    """What of a function is fused for these arguments, what is not, and why, as the store has it now; nothing runs."""
    from fusiond.jax import regions

    cuts: list[Any] = []

    def seen(*arguments: Any, **named: Any) -> Any:
        cuts.append(regions.cut(_traced(function._function, arguments, named)[0]))

    jax.jit(seen, **function._jit).trace(*arguments, **named)
    judged = (function._judged(number, segment, ask=False)[0] for number, segment in enumerate(cuts[-1].segments))
    return Report(regions=tuple(judged))


def _traced(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[core.ClosedJaxpr, list[Any], Any]:
    """(the jaxpr of a function of those leaves of its arguments that are traced, these, the structure of its result)"""
    leaves, shape = jax.tree.flatten((arguments, named))
    traced = [isinstance(each, jax.core.Tracer) for each in leaves]
    given = [each for each, dynamic in zip(leaves, traced, strict=True) if dynamic]

    def of_flat(*given: Any) -> Any:
        values = iter(given)
        filled = [next(values) if dynamic else each for each, dynamic in zip(leaves, traced, strict=True)]
        arguments, named = jax.tree.unflatten(shape, filled)
        return function(*arguments, **named)

    closed, results = jax.make_jaxpr(of_flat, return_shape=True)(*given)
    return closed, given, jax.tree.structure(results)


def _spread(call: Any) -> bool:
    """Whether an argument lies on several devices."""
    return any(
        isinstance(each, jax.Array) and not isinstance(each, jax.core.Tracer) and len(each.sharding.device_set) > 1
        for each in jax.tree.leaves(call)
    )


def _platform() -> str | None:
    return {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}.get(jax.default_backend())


def _device(platform: str) -> str:
    return "cpu" if platform == "cpu" else f"cuda:{jax.devices()[0].local_hardware_id}"
