"""The backend of `torch.compile`: graphs whose regions run as measured kernels where there are answers."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.launching import Unusable
from fusiond.service.frameworks.region_answers import Asker, Found, FusionOptions, Question, line
from fusiond.torch import combining, explaining, importer, loop_products, recording, regions, rolling, splicing
from fusiond.torch.explaining import CompiledGraphs, Region
from fusiond.torch.graphs import FxGraph, Tensor
from fusiond.torch.operators import Unsupported
from fusiond.torch.regions import FxSegment

log = logging.getLogger("fusiond.torch")

_CHOICES = {"fallback": ("inductor", "eager"), "combine": ("measured",)}


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
    eager = _is_eager(chosen)
    if eager and chosen.fallback != "eager":
        record.notes.append("Inductor is not there: the rest runs eagerly")
    if eager and chosen.combine is not None:
        record.notes.append("nothing is combined: the launches are not Inductor's")

    def compiling(graph: Any, inputs: Sequence[Any], rolled: Any = None) -> Any:
        part = functools.partial(_compiled, chosen, record, rolled)
        return _eager(graph, inputs, part) if eager else _by_inductor(graph, inputs, part, _inner(chosen, record))

    if _varies(inputs):
        return _uncompiled(_ByShape(graph, compiling, record).call)
    try:
        module, steps = rolling.rolled(splicing.copied(graph))
        module, several = loop_products.before(module)
    except Exception:  # a graph that nobody foresaw is as it was
        log.warning("a graph's loops could not be looked for", exc_info=True)
        steps, several = (), 0
    if not steps:
        return compiling(module if several else graph, inputs)
    rolled = _Rolled(module, compiling, record)
    if (refused := rolled.refused(inputs)) is None:
        return rolled.called(lambda: _torchs(graph, inputs, chosen))
    record.notes.append(f"loops of {' and '.join(map(str, steps))} steps stay unrolled: {refused}")
    return compiling(graph, inputs)


def _uncompiled(function: Any) -> Any:
    return torch._dynamo.disable(function, reason="do not trace what fusiond compiles")


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

    def call(self, *inputs: Any) -> Any:
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
            self._record.notes.append(f"a shape is eager torch's, for {type(problem).__name__}: {line(problem)}")
            return self._graph.forward


class _Rolled:
    """A graph in which unrolled loops were found: rolled up once all that its loops are in has answers, forward and
    backward; torch's, unrolled, until then."""

    def __init__(self, module: Any, compiling: Callable[..., Any], record: CompiledGraphs) -> None:
        self._module, self._compiling, self._record = module, compiling, record
        self.left: list[Region] = []  #: With loops that are not fused
        self._renewed = False
        self._current: Any = None

    def refused(self, inputs: Sequence[Any]) -> str | None:
        """Why its loops cannot be one launch each; None where they are, or may be once there are answers."""
        self._current = self._tried(inputs)
        refused = [each.reason for each in self.left if each.state in ("library", "refused")]
        if self._current is not None or not refused:
            return None
        self._record.graphs.clear()
        return "; ".join(dict.fromkeys(refused))

    def called(self, torchs: Callable[[], Any]) -> Any:
        """Something to call; what `torchs` gives until there are answers."""
        if self._current is not None:
            return self._current
        self._current = torchs()
        return _uncompiled(self._call)

    def _call(self, *inputs: Any) -> Any:
        if self._renewed:
            self._renewed = False
            self._current = self._tried(inputs) or self._current
        return self._current(*inputs)

    def _tried(self, inputs: Sequence[Any]) -> Any:
        """The graph rolled up; None where a loop of it is not fused."""
        self.left = []
        self._record.graphs.clear()
        from torch._functorch import config as functorch

        try:
            with functorch.patch(force_non_lazy_backward_lowering=True):
                found = self._compiling(splicing.copied(self._module), inputs, self)
        except Exception as problem:
            log.info("a rolled graph is not compiled", exc_info=True)
            self.left.append(Region(name="", state="refused", reason=line(problem), operators=()))
            return None
        return None if self.left else found

    def renew(self) -> None:
        self._renewed = True


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
    for name, choices in _CHOICES.items():
        if (value := getattr(found, name)) not in (None, *choices):
            raise ValueError(f"{name} is {value!r}; it can be {' or '.join(choices)}")
    region_answers.check_options(found.search, found.device)
    return found


@functools.cache
def _inductor() -> bool:
    return importlib.util.find_spec("torch._inductor") is not None


def _is_eager(options: BackendOptions) -> bool:
    return options.fallback == "eager" or not _inductor()


def _torchs(graph: Any, inputs: Sequence[Any], options: BackendOptions) -> Any:
    if _is_eager(options):
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

    return compile_fx_inner if options.combine is None else combining.compiler(options, record)


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
        record.notes.append(f"{part}: torch's, for {type(problem).__name__}: {line(problem)}")
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

    def decide(self, state: str, reason: str, speedup: float | None = None) -> None:
        self.region = replace(self.region, state=state, reason=reason, speedup=speedup)

    @property
    def waits(self) -> bool:
        return self.question is not None and self.region.state == "unknown"


class Running:
    """A graph that is called: as torch has it until there are answers, spliced from then on."""

    def __init__(self, options: BackendOptions, module: Any, part: str, inner: Any) -> None:
        self._options, self._module, self._inner = options, module, inner
        self._lock = threading.Lock()
        recording.folded(module)
        graph: FxGraph = recording.recorded(module.graph)
        self._shapes = graph.tensors()
        self._asker: Asker = region_answers.of(options.db)
        self._parts = [self._asked(f"{part}_{place}", each) for place, each in enumerate(regions.cut(graph))]
        self._current: Any = None
        self._strides: splicing.Strides | None = None
        self._renewed = False

    def regions(self) -> list[Region]:
        """What became of each segment, by now."""
        for each in self._parts:
            if problem := getattr(each.code, "problem", ""):
                each.decide("refused", problem)
        return [each.region for each in self._parts]

    def loops_left(self, rolled: _Rolled) -> bool:
        """Whether a loop is not fused; of those that are asked for, the graph hears when there is an answer."""
        for each in self._parts:
            if each.code is None and any(node.loop for node in each.segment.nodes):
                rolled.left.append(each.region)
                if each.waits:
                    self._want(each, rolled.renew)
        return bool(rolled.left)

    def _want(self, part: _Part, changed: Callable[..., None], *given: Any) -> None:
        assert part.question is not None
        self._asker.want(part.question, region_answers.weakly(changed, *given))

    def started(self, default: Callable[[], Any]) -> Any:
        """Something to call with a list of inputs."""
        fused = any(each.code is not None for each in self._parts)
        if fused:
            self._current = self._spliced()
        else:
            self._current = default()
            # The backward graph is compiled for what the forward one gives now.
            self._strides = list(splicing.reported() or ()) or None
        waiting = [each for each in self._parts if each.waits]
        if not waiting and not fused:
            return self._current
        for each in waiting:
            self._want(each, self.renew, each)

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

    def _asked(self, name: str, segment: FxSegment) -> _Part:
        part = _Part(segment, Region(name=name, state="library", reason=segment.reason, operators=segment.operators))
        if not segment.fusable:
            return part
        device = next(each.device for node in segment.nodes for each in node.results if each is not None)
        inputs = dict(zip(segment.inputs, self._tensors(segment.inputs), strict=True))
        if device != "cpu" and not device.startswith("cuda"):
            part.decide("refused", f"no kernels for {device}")
        elif device == "cpu" and not self._options.always:
            part.decide("refused", "kernels for a processor are for trying out: always=True")
        else:
            try:
                text = importer.text(f"torch_{name}", segment.nodes, inputs, segment.outputs)
            except Unsupported as why:
                part.decide("refused", str(why))
                return part
            part.question = Question(name, text, self._options.device or device, self._options.search)
            self._judge(part, self._asker.found(part.question, self._options))
        return part

    def _tensors(self, names: Sequence[str]) -> list[Tensor]:
        found = [each for name in names for each in self._shapes[name] if each is not None]
        assert len(found) == len(names), f"not each of {', '.join(names)} is a tensor"
        return found

    def _judge(self, part: _Part, found: Found) -> None:
        """Sets what is known of a part, with its code where it is to be launched."""
        from fusiond.torch import code

        if not found.usable(self._options):
            part.decide(*found.why_not(self._options, "torch's is"))
            return
        try:
            part.code = code.built(found, self._tensors(part.segment.inputs), self._tensors(part.segment.outputs))
        except Unusable as problem:
            part.decide("refused", str(problem))
            return
        measured = found.evidence == "measured"
        why = "" if measured else f"its answer is {found.evidence}, and says nothing about time"
        part.decide("fused", why, found.speedup if measured else None)

    def renew(self, part: _Part) -> None:
        """Takes up what is known of a part by now; in the thread of the asker."""
        assert part.question is not None
        self._judge(part, self._asker.look(part.question))
        if part.code is not None:
            self._renewed = True
