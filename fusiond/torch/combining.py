"""Combines independent launches of Inductor's code into one where that is known to be faster (`torch.compile(...,
options={"combine": "measured"})`).

After the first call, by which each kernel is tuned, the function that Inductor wrote gets other code for a call: its
launches in rounds (`rounds`), each asked for as a program's own (`fusiond.cuda.recording`). Then it has Inductor's code
again, but for the rounds whose answer is to fuse. What was captured before is compiled, and captured, once more.
"""

from __future__ import annotations

import ast
import copy
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from fusiond.cuda.recording import groups
from fusiond.cuda.recording import triton as recording
from fusiond.cuda.recording.arguments import NULL
from fusiond.cuda.recording.fused import LaidOutLaunch
from fusiond.cuda.recording.groups import LaunchGroup
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.model.ptx.triton import NotTaken
from fusiond.service.frameworks.region_answers import FusionOptions, line, weakly
from fusiond.torch import rounds
from fusiond.torch.explaining import CompiledGraphs, Region

log = logging.getLogger("fusiond.torch")


def compiler(options: FusionOptions, record: CompiledGraphs) -> Callable[..., Any]:
    """Inductor's compiler of graphs, for graphs whose launches are combined."""
    from torch._inductor.compile_fx import compile_fx_inner

    from fusiond.torch import splicing

    def compiled(module: Any, examples: Sequence[Any], **named: Any) -> Any:
        kept = splicing.copied(module)  # Inductor rewrites what it is given
        again = functools.partial(compile_fx_inner, **named)
        name = "backward" if named.get("is_backward") else "forward"
        graph = CombinedGraph(name, compile_fx_inner(module, examples, **named), options, record)
        if _replayed(named):
            graph.again = lambda: again(splicing.copied(kept), examples)
        record.graphs.append(weakly(graph.regions))
        return graph

    return compiled


def _replayed(named: Mapping[str, Any]) -> bool:
    """Whether a graph that was compiled so is captured, and replayed from then on."""
    return bool(named.get("cudagraphs"))


class CombinedGraph:
    """A graph as Inductor compiled it, called with a list of its inputs."""

    _boxed_call = True

    def __init__(self, name: str, compiled: Any, options: FusionOptions, record: CompiledGraphs) -> None:
        self._name, self._compiled, self._options, self._record = name, compiled, options, record
        self._rounds: list[LaunchRound] | None = None  #: None before the first call
        self._lock = threading.Lock()
        self.again: Callable[[], Any] | None = None  #: Compiles it once more, where it is captured
        self._taken_up = 0  #: Answers for which it was

    def __call__(self, inputs: list[Any]) -> Any:
        if isinstance(self._rounds, CombinedFunctions) and self._rounds.settle() and self.again is not None:
            self._compile(self._rounds, self.again)
        found = self._compiled(inputs)
        if self._rounds is None:
            self._rewrite()
        return found

    def regions(self) -> list[Region]:
        return [each.region(f"{self._name}_round_{place}") for place, each in enumerate(self._rounds or ())]

    def _rewrite(self) -> None:
        with self._lock:
            if self._rounds is not None:
                return
            self._rounds = []
            try:
                self._rounds = combined(self._compiled, self._options)
            except Exception as problem:  # the graph stays Inductor's
                log.info("launches are not combined", exc_info=True)
                self._record.notes.append(f"{self._name}: not combined, for {type(problem).__name__}: {line(problem)}")

    def _compile(self, rounds: CombinedFunctions, again: Callable[[], Any]) -> None:
        """Between two calls: what was captured does not have the answers that are here by now."""
        with self._lock:
            ready = sum(each.ready for each in rounds)
            if self._rounds is not rounds or ready <= self._taken_up:
                return
            self._taken_up = ready
            try:
                for each in rounds:
                    each.load()
                self._compiled, self._rounds = again(), None
            except Exception:
                log.warning("an answer could not be taken up", exc_info=True)


# --- what Inductor wrote --------------------------------------------------------------------------------


class CombinedFunctions(list["LaunchRound"]):
    """The rounds of the functions that Inductor wrote for a graph. These have other code while there is something to
    ask, and where rounds are to be launched as one; else Inductor's."""

    def __init__(self, functions: Sequence[FunctionType], options: FusionOptions) -> None:
        scope = functions[0].__globals__
        kernels = {name: made for name, each in scope.items() if (made := kernel(each)) is not None}
        self._uses = {name: each.uses for name, each in kernels.items()}
        tree = ast.parse(Path(scope["__file__"]).read_text(encoding="utf-8"))
        written = {each.lineno: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        self._functions = [(each, each.__code__, written[each.__code__.co_firstlineno]) for each in functions]
        self._ready: list[bool] | None = None  #: Of each round, when the code was made; None: before all were asked for
        self._lock = threading.Lock()
        codes, found = self._codes(None)
        super().__init__(LaunchRound([kernels[name] for name in each], options) for each in found)
        scope[rounds.ROUNDS] = self
        for function, code in codes:
            function.__code__ = code

    def _codes(self, chosen: set[int] | None) -> tuple[list[tuple[FunctionType, CodeType]], list[tuple[str, ...]]]:
        found: list[tuple[str, ...]] = []
        codes = []
        for function, own, written in self._functions:
            new = copy.deepcopy(written)
            first = len(found)
            found += rounds.put_together(new, self._uses, first, chosen)
            if any(chosen is None or number in chosen for number in range(first, len(found))):
                scope, local = function.__globals__, dict[str, Any]()
                exec(compile(ast.Module([new], []), scope["__file__"], "exec", dont_inherit=True), scope, local)
                own = local[new.name].__code__
            codes.append((function, own))
        return codes, found

    def settle(self) -> bool:
        """Once all rounds are asked for: leave where they were the launches of those that are not to be one. Whether
        there are rounds that are to be one from now on, and never were."""
        ready = [each.ready for each in self]
        if ready == self._ready:
            return False
        with self._lock:
            if ready == self._ready or not all(each.asked for each in self):
                return False
            self._ready = ready
            for function, code in self._codes({number for number, each in enumerate(ready) if each})[0]:
                function.__code__ = code
        return any(each.ready and not each.was_one for each in self)


def combined(compiled: Any, options: FusionOptions) -> list[LaunchRound]:
    """The rounds of a graph; what Inductor wrote for it has them from then on."""
    functions = list(_functions(compiled))
    if not functions:
        return []
    found = functions[0].__globals__.get(rounds.ROUNDS)
    return found if isinstance(found, CombinedFunctions) else CombinedFunctions(functions, options)


def _functions(compiled: Any) -> Iterator[FunctionType]:
    """Those that launch: the graph's own, and one for each part of it that is captured by itself."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    own = getattr(runner, "call", None) or getattr(compiled, "current_callable", None)
    own = getattr(own, "__func__", own)
    if isinstance(own, FunctionType) and "__file__" in own.__globals__:
        yield own
        for name, each in own.__globals__.items():
            if name.startswith("partition_") and isinstance(each, FunctionType):
                yield each


class PtxBesideCubin:
    """What Triton compiled and left in its cache, where Inductor launches the cubin by itself (as a CompiledKernel)."""

    def __init__(self, stem: Path, signature: Mapping[str, str]) -> None:
        self.asm = {"ptx": Path(f"{stem}.ptx").read_text(encoding="utf-8")}
        self.metadata = SimpleNamespace(**json.loads(Path(f"{stem}.json").read_text(encoding="utf-8")))
        self.src = SimpleNamespace(signature=signature)


def _cache(device: int) -> Path:
    """Triton's, where Inductor compiles for a device."""
    from torch._inductor.runtime.runtime_utils import triton_cache_dir

    return Path(triton_cache_dir(device))


@dataclass(frozen=True, slots=True)
class InductorKernel:
    """A kernel that Inductor compiled and tuned."""

    tuner: Any  #: A CachingAutotuner
    config: Any
    compiled: Any
    names: tuple[str, ...]  #: Of what `run` is handed
    types: tuple[str, ...]  #: As Triton names them
    uses: tuple[bool | None, ...]  #: Of each: whether what it points to may be written, None of a number

    def run(self, stream: int, *arguments: Any) -> None:
        self.tuner.run(*arguments, stream=stream)

    def described(self, stream: int, *arguments: Any) -> RecordedLaunch:
        """A launch. NotTaken."""
        _, grid = self.tuner._interpret_args_grid(arguments, self.config)
        given = {
            name: recording.read(value, kind)
            for name, kind, value in zip(self.names, self.types, arguments, strict=True)
            if kind != "constexpr"
        }
        return recording.launch_of(self.compiled, given, grid, stream, self.device, lambda: None)

    @property
    def device(self) -> int:
        return int(self.tuner.triton_meta["device"])


def kernel(tuner: Any) -> InductorKernel | None:
    """What a name of a module stands for; None where it is not a kernel that can be launched with others."""
    if not any(each.__name__ == "CachingAutotuner" for each in type(tuner).__mro__) or len(tuner.launchers) != 1:
        return None
    launcher, config = tuner.launchers[0], tuner.launchers[0].config
    result = next((each for each in tuner.compile_results if each.config is config), None)
    if result is None:
        return None
    signature, made = result.compile_meta["signature"], result.kernel
    try:
        compiled = made
        if not hasattr(made, "asm"):
            folder = _cache(tuner.triton_meta["device"]) / launcher.cache_hash
            compiled = PtxBesideCubin(folder / made.name, signature)
        recording.launch_of(compiled, dict.fromkeys(signature, NULL), (1, 1, 1), 0, 0, lambda: None)
    except (NotTaken, OSError, ValueError) as why:
        log.debug("%s is launched by itself: %s", tuner.inductor_meta.get("kernel_name"), why)
        return None
    if getattr(compiled.metadata, "launch_pdl", False):
        return None  # it may begin before those that it needs have ended
    constants = {tuner.fn.arg_names[place] for place in tuner.fn.constexprs}
    names = tuple(each for each in signature if each not in constants)
    read = set() if tuner.custom_kernel else {each for each in names if each.startswith("in_ptr")}
    read -= set(tuner.mutated_arg_names)
    uses = tuple(name not in read if signature[name].startswith("*") else None for name in names)
    return InductorKernel(tuner, config, compiled, names, tuple(signature[each] for each in names), uses)


# --- a round --------------------------------------------------------------------------------------------


class LaunchRound:
    """Launches that come together, called with what each is handed: (stream, arguments ...)."""

    def __init__(self, kernels: Sequence[InductorKernel], options: FusionOptions) -> None:
        self._kernels, self._options = kernels, options
        self.was_one = False  #: Whether its launches have been one
        self._group: LaunchGroup | None = None
        self._numbers: list[Any] = []  #: That were asked for, by which its grid is what it is
        self._laid_out: LaidOutLaunch | None = None
        handed = [(each.types[at].startswith("*"), number, 1 + at)
                  for number, each in enumerate(kernels) for at in range(len(each.types))]  # fmt: skip
        self._pointers = [(number, at) for pointer, number, at in handed if pointer]
        self._numbered = [(number, at) for pointer, number, at in handed if not pointer]
        self._problem = ""
        self._stream = 0

    def __call__(self, *launches: tuple[Any, ...]) -> None:
        for number in self._left(launches):
            self._kernels[number].run(*launches[number])

    def _left(self, launches: Sequence[tuple[Any, ...]]) -> Sequence[int]:
        """Launches what is known to be faster as one; the numbers of the others."""
        everything = range(len(launches))
        try:
            group = self._ready(launches)
            if group is None:
                return everything
            if self._laid_out is None:
                recorded = self._described(launches)
            else:
                addresses = [launches[number][at].data_ptr() for number, at in self._pointers]
        except Exception as problem:  # a fault of ours; nothing was launched yet
            self._problem = line(problem) or type(problem).__name__
            log.warning("launches stay apart: %s", self._problem)
            return everything
        if self._laid_out is not None:
            return group.start_again(self._laid_out, addresses, launches[0][0])
        left = group.start(recorded)
        if not left:
            self.was_one, self._laid_out = True, group.laid_out(recorded)
        return left

    def _ready(self, launches: Sequence[tuple[Any, ...]]) -> LaunchGroup | None:
        """The group, if these launches are to run as one."""
        if self._problem:
            return None
        numbers, stream = [launches[number][at] for number, at in self._numbered], launches[0][0]
        if self._group is None:
            self._numbers, self._stream = numbers, stream
            recorded = self._described(launches)
            self._group = None if groups.apart(recorded) else groups.of(recorded, self._options)
            if self._group is None:
                self._problem = "too many launches came together, or they go to several streams"
        same = all(each[0] == stream for each in launches) and numbers == self._numbers
        return self._group if self.ready and same else None

    def _described(self, launches: Sequence[tuple[Any, ...]]) -> list[RecordedLaunch]:
        return [kernel.described(*each) for kernel, each in zip(self._kernels, launches, strict=True)]

    @property
    def asked(self) -> bool:
        return self._group is not None or bool(self._problem)

    @property
    def ready(self) -> bool:
        """Whether its launches are one from now on."""
        return self._group is not None and not self._problem and self._group.ready

    def load(self) -> None:
        """Makes its answer one that can be captured. NotNow, LaunchFailed."""
        if self._group is not None and self.ready:
            self._group.load(self._kernels[0].device, self._stream)

    def region(self, name: str) -> Region:
        found = self._group.explained() if self._group is not None else None
        state, reason = ("refused", self._problem) if self._problem else ("unknown", "not asked for yet")
        if found is not None and not self._problem:
            state, reason = found.state, found.reason
        names = tuple(each.tuner.inductor_meta.get("kernel_name", "kernel") for each in self._kernels)
        return Region(name=name, state=state, reason=reason, operators=names, speedup=found.speedup if found else None)
