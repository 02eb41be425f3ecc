"""The backend of `torch.compile`: graphs whose regions run as measured kernels where there are answers."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.launching import Unusable
from fusiond.service.frameworks.region_answers import Asker, Found, FusionOptions, Question
from fusiond.torch import combining, explaining, importer, loop_products, recording, regions, rolling, splicing
from fusiond.torch.explaining import CompiledGraphs, Region
from fusiond.torch.graphs import FxGraph, Tensor
from fusiond.torch.operators import Unsupported
from fusiond.torch.regions import FxSegment

log = logging.getLogger("fusiond.torch")

FALLBACKS = ("inductor", "eager")
COMBINE = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions(FusionOptions):
    """Of `torch.compile(..., options={...})`."""

    fallback: str | None = None  #: What runs the rest: `inductor` or `eager`; None: Inductor where it is
    combine: str | None = None
    """`measured`: launches of Inductor's that do not need each other's results are one where that is faster."""


def backend(graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any) -> Any:
    """A function as `torch.compile` wants it. Whatever is wrong with the options is one ValueError; whatever fails
    later leaves the graph to torch."""
    chosen = _options(options or {})
    if not region_answers.enabled():
        return _torchs(graph, inputs, chosen)
    record = explaining.opened()
    if others:
        record.notes.append(f"not known here, and left out: {', '.join(sorted(others))}")
    if chosen.fallback != "eager" and not _inductor():
        record.notes.append("Inductor is not there: the rest runs eagerly")
    eager = chosen.fallback == "eager" or not _inductor()
    if eager and chosen.combine is not None:
        record.notes.append("nothing is combined: the launches are not Inductor's")

    def compiling(graph: Any, inputs: Sequence[Any], record: CompiledGraphs = record, rolled: Any = None) -> Any:
        part = functools.partial(_compiled, chosen, record, rolled)
        return _eager(graph, inputs, part) if eager else _by_inductor(graph, inputs, part, _inner(chosen, record))

    if _varies(inputs):
        return _ByShape(graph, compiling, record).called()
    try:
        module, steps = rolling.rolled(splicing.copied(graph))
        module, several = loop_products.before(module)
    except Exception:  # a graph that nobody foresaw is as it was
        log.warning("a graph's loops could not be looked for", exc_info=True)
        steps, several = (), 0
    if not steps:
        return compiling(module if several else graph, inputs)
    return _Rolled((module, steps), compiling, lambda inputs: _torchs(graph, inputs, chosen), record).called(
        inputs, lambda: compiling(graph, inputs)
    )


def _varies(inputs: Sequence[Any]) -> bool:
    """Whether a graph is for inputs of many shapes."""
    sizes = [size for each in inputs for size in getattr(each, "shape", (each,))]
    return any(isinstance(each, torch.SymInt) for each in sizes)


class _ByShape:
    """A graph for many shapes, compiled for each that it meets: a new shape is a new question."""

    MOST = 16  #: Shapes; from then on it is eager torch's

    def __init__(self, graph: Any, compiling: Callable[..., Any], record: CompiledGraphs) -> None:
        self._graph, self._compiling, self._record = graph, compiling, record
        self._found: dict[tuple[Any, ...], Any] = {}

    def called(self) -> Any:
        return torch._dynamo.disable(self._call, reason="do not trace what fusiond compiles")

    def _call(self, *inputs: Any) -> Any:
        key = tuple(map(_shape, inputs))
        found = self._found.get(key)
        if found is None:
            found = self._compiled(inputs) if len(self._found) < self.MOST else self._graph.forward
            self._found[key] = found
        return found(*inputs)

    def _compiled(self, inputs: Sequence[Any]) -> Any:
        try:
            return self._compiling(splicing.copied(self._graph), inputs)
        except Exception as problem:
            log.info("a shape is not compiled", exc_info=True)
            self._record.notes.append(f"a shape is eager torch's, for {type(problem).__name__}: {_line(problem)}")
            return self._graph.forward


class _Rolled:
    """A graph in which unrolled loops were found: rolled up once all that its loops are in has answers, forward and
    backward; torch's, unrolled, until then."""

    def __init__(
        self, found: tuple[Any, Sequence[int]], compiling: Callable[..., Any], torchs: Any, record: CompiledGraphs
    ) -> None:
        (self._module, self._steps), self._compiling, self._torchs, self._record = found, compiling, torchs, record
        self.waiting: list[tuple[Asker, Question]] = []
        self.left: list[Region] = []
        """Regions with loops that are not fused: those with unknown answers, and all of them."""
        self._renewed = False
        self._current: Any = None

    def called(self, inputs: Sequence[Any], default: Callable[[], Any]) -> Any:
        """Something to call; the default where its loops cannot be one launch each."""
        self._current = self._tried(inputs)
        if self._current is not None:
            return self._current
        refused = [each.reason for each in self.left if each.state in ("library", "refused")]
        if refused:
            said = " and ".join(map(str, self._steps))
            self._record.graphs.clear()
            self._record.notes.append(f"loops of {said} steps stay unrolled: {'; '.join(dict.fromkeys(refused))}")
            return default()
        self._current = self._torchs(inputs)
        return torch._dynamo.disable(self._call, reason="do not trace what fusiond compiles")

    def _call(self, *inputs: Any) -> Any:
        if self._renewed:
            self._renewed = False
            self._current = self._tried(inputs) or self._current
        return self._current(*inputs)

    def _tried(self, inputs: Sequence[Any]) -> Any:
        """The graph rolled up; None where a loop of it is not fused."""
        self.waiting, self.left = [], []
        self._record.graphs.clear()
        from torch._functorch import config as functorch

        try:
            with functorch.patch(force_non_lazy_backward_lowering=True):
                found = self._compiling(splicing.copied(self._module), inputs, self._record, self)
        except Exception as problem:
            log.info("a rolled graph is not compiled", exc_info=True)
            self.left.append(Region(name="", state="refused", reason=_line(problem), operators=()))
            return None
        me = weakref.ref(self)
        for asker, question in self.waiting:
            asker.want(question, functools.partial(_renewed, me))
        return None if self.left else found

    def renew(self) -> None:
        self._renewed = True


def _renewed(rolled: weakref.ref[_Rolled]) -> None:
    me = rolled()
    if me is not None:
        me.renew()


def _shape(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad


def _options(given: Mapping[str, Any]) -> BackendOptions:
    known = [each.name for each in fields(BackendOptions)]
    for name in given:
        if name not in known:
            raise ValueError(f"fusiond has no option {name!r}; it has {', '.join(known)}")
    found = BackendOptions(**given)
    if found.fallback not in (None, *FALLBACKS):
        raise ValueError(f"fallback is {found.fallback!r}; it can be {' or '.join(FALLBACKS)}")
    if found.combine not in (None, COMBINE):
        raise ValueError(f"combine is {found.combine!r}; it can be {COMBINE}")
    region_answers.check_options(found.search, found.device)
    return found


@functools.cache
def _inductor() -> bool:
    return importlib.util.find_spec("torch._inductor") is not None


def _torchs(graph: Any, inputs: Sequence[Any], options: BackendOptions) -> Any:
    if options.fallback == "eager" or not _inductor():
        return graph.forward
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs)


def _eager(graph: Any, inputs: Sequence[Any], compiling: Callable[..., Any]) -> Any:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compiled(module: Any, examples: Sequence[Any], part: str) -> Any:
        return compiling(module, part, lambda: make_boxed_func(module.forward), None)

    return aot_autograd(
        fw_compiler=functools.partial(compiled, part="forward"),
        bw_compiler=functools.partial(compiled, part="backward"),
    )(graph, inputs)


def _inner(options: BackendOptions, record: CompiledGraphs) -> Callable[..., Any]:
    """Inductor's compiler of graphs."""
    from torch._inductor.compile_fx import compile_fx_inner

    if options.combine is None:
        return compile_fx_inner  # type: ignore[no-any-return]
    return combining.compiler(options, record)


def _by_inductor(graph: Any, inputs: Sequence[Any], compiling: Callable[..., Any], compiler: Callable[..., Any]) -> Any:
    from torch._functorch import config as functorch
    from torch._inductor.compile_fx import compile_fx

    def inner(module: Any, examples: Sequence[Any], **named: Any) -> Any:
        part = "backward" if named.get("is_backward") else "forward"
        kept = splicing.copied(module)  # Inductor rewrites what it is given
        return compiling(kept, part, lambda: compiler(module, examples, **named), compiler)

    # What is kept across processes are Inductor's graphs, which say nothing of ours.
    with functorch.patch(enable_autograd_cache=False):
        return compile_fx(graph, inputs, inner_compile=inner)


def _compiled(
    options: BackendOptions, record: CompiledGraphs, rolled: _Rolled | None, module: Any, part: str,
    default: Callable[[], Any], inner: Any,
) -> Any:  # fmt: skip
    """A graph of AOTAutograd's as something to call with a list of its inputs. Of one that is `rolled`, and is not
    called where a loop in it is not fused, what is left is noted."""
    try:
        if any(str(each.target) == "scan" for each in module.graph.nodes):
            module = loop_products.behind(splicing.copied(module))
        running = Running(options, module, part, inner)
        record.graphs.append(running.regions)
        if rolled is not None and running.loops_left(rolled):
            return _uncalled
    except Exception as problem:  # whatever is wrong here, the graph is torch's
        log.info("a graph is not fused", exc_info=True)
        record.notes.append(f"{part}: torch's, for {type(problem).__name__}: {_line(problem)}")
        return default()
    return running.started(default)


def _uncalled(inputs: list[Any]) -> Any:
    raise AssertionError("a rolled graph without answers is not called")


_uncalled._boxed_call = True  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Part:
    """A segment, and what is known of it."""

    segment: FxSegment
    region: Region
    question: Question | None = None
    code: Any = field(default=None, repr=False)


class Running:
    """A graph that is called: as torch has it until there are answers, spliced from then on."""

    def __init__(self, options: BackendOptions, module: Any, part: str, inner: Any) -> None:
        self._options, self._module, self._inner = options, module, inner
        self._lock = threading.Lock()
        recording.folded(module)
        self._graph: FxGraph = recording.recorded(module.graph)
        self._shapes = self._graph.tensors()
        self._asker: Asker = region_answers.of(options.db)
        self._parts = [self._asked(part, place, each) for place, each in enumerate(regions.cut(self._graph))]
        self._current: Any = None
        self._strides: splicing.Strides | None = None
        self._renewed = False

    def regions(self) -> list[Region]:
        """What became of each segment, by now."""
        found = []
        for each in self._parts:
            problem = getattr(each.code, "problem", "")
            found.append(each.region if not problem else _region(each.region, "refused", problem))
        return found

    def loops_left(self, rolled: _Rolled) -> bool:
        """Whether a loop is not fused; which, and what is waited for."""
        left = [each for each in self._parts if each.code is None and any(node.loop for node in each.segment.nodes)]
        rolled.left += [each.region for each in left]
        rolled.waiting += [(self._asker, each.question) for each in left
                           if each.question is not None and each.region.state == "unknown"]  # fmt: skip
        return bool(rolled.left)

    def started(self, default: Callable[[], Any]) -> Any:
        """Something to call with a list of inputs."""
        fused = any(each.code is not None for each in self._parts)
        if fused:
            self._current = self._spliced()
        else:
            self._current = default()
            # The backward graph is compiled for what the forward one gives now.
            self._strides = list(splicing.reported() or ()) or None
        waiting = [each for each in self._parts if each.question is not None and each.region.state == "unknown"]
        if not waiting and not fused:
            return self._current
        me = weakref.ref(self)
        for each in waiting:
            self._asker.want(each.question, functools.partial(_changed, me, each))  # type: ignore[arg-type]

        def called(inputs: list[Any]) -> Any:
            if self._renewed:
                self._take_up()
            return self._current(inputs)

        called._boxed_call = True  # type: ignore[attr-defined]
        return called

    def _take_up(self) -> None:
        """Between two calls, in the thread of the caller: its kernels are built by now."""
        with self._lock:
            if not self._renewed:
                return
            self._renewed = False
            try:
                self._current = self._spliced()
            except Exception:
                log.warning("an answer could not be taken up", exc_info=True)

    def _spliced(self) -> Any:
        codes = {place: each.code for place, each in enumerate(self._parts) if each.code is not None}
        return splicing.spliced(self._module, [each.segment for each in self._parts], codes, self._inner, self._strides)

    # --- a segment ---

    def _asked(self, name: str, place: int, segment: FxSegment) -> _Part:
        region = Region(name=f"{name}_{place}", state="library", reason=segment.reason, operators=segment.operators)
        if not segment.fusable:
            return _Part(segment, region)
        inputs = {each: self._tensor(each) for each in segment.inputs}
        device = next(each.device for node in segment.nodes for each in node.results if each is not None)
        if device != "cpu" and not device.startswith("cuda"):
            return _Part(segment, _region(region, "refused", f"no kernels for {device}"))
        if device == "cpu" and not self._options.always:
            return _Part(segment, _region(region, "refused", "kernels for a processor are for trying out: always=True"))
        try:
            text = importer.text(f"torch_{name}_{place}", segment.nodes, inputs, segment.outputs)
        except Unsupported as why:
            return _Part(segment, _region(region, "refused", str(why)))
        question = Question(region.name, text, self._options.device or device, self._options.search)
        part = _Part(segment, region, question)
        self.judge(part, self._asker.found(question, self._options))
        return part

    def _tensor(self, name: str) -> Tensor:
        (found,) = self._shapes[name]
        assert found is not None, f"{name} is not a tensor"
        return found

    def judge(self, part: _Part, found: Found) -> None:
        """Sets what is known of a part, with its code where it is to be launched."""
        if found.usable(self._options):
            self._build(part, found)
        else:
            part.region = _region(part.region, *found.why_not(self._options, "torch's is"))

    def _build(self, part: _Part, found: Found) -> None:
        from fusiond.torch import code

        inputs = [self._tensor(each) for each in part.segment.inputs]
        outputs = [self._tensor(each) for each in part.segment.outputs]
        try:
            part.code = code.built(found, inputs, outputs)
            measured = found.evidence == "measured"
            why = "" if measured else f"its answer is {found.evidence}, and says nothing about time"
            part.region = _region(part.region, "fused", why, found.speedup if measured else None)
        except Unusable as problem:
            part.region = _region(part.region, "refused", str(problem))

    def renew(self, part: _Part) -> None:
        """Takes up what is known of a part by now; in the thread of the asker."""
        assert part.question is not None
        self.judge(part, self._asker.look(part.question))
        if part.code is not None:
            self._renewed = True


def _changed(running: weakref.ref[Running], part: _Part) -> None:
    me = running()
    if me is not None:
        me.renew(part)


def _region(region: Region, state: str, reason: str, speedup: float | None = None) -> Region:
    return Region(name=region.name, state=state, reason=reason, operators=region.operators, speedup=speedup)


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]
