"""Kernels of a graph as questions to other strategies, and their answers in the place of those kernels.

Two kernels of the device that do not need each other are offered to whoever takes kernels; a region that the graph's
file names, with the document that says what it computes, to whoever takes such documents. What becomes of a question is
a launch that takes the place of the kernels (`fusiond.strategy.composition`); the graph with it is planned for
transfers again.
"""

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.model.language import extents
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.extents import text_of
from fusiond.model.nouns import Job, Rejection, frozen
from fusiond.model.outcomes import Verdict
from fusiond.model.program import Fill, Scalar
from fusiond.strategy import Answers, Asked, Others
from fusiond.strategy.composition import MADE, fragments, groups
from fusiond.strategy.composition.fragments import Fragment, Unfit
from fusiond.strategy.composition.groups import GroupCandidate
from fusiond_transfer.analysis.layout import ALIGNMENT
from fusiond_transfer.codegen import body
from fusiond_transfer.frontend import sizes as graph_sizes
from fusiond_transfer.frontend.generator import written_fill
from fusiond_transfer.frontend.graph import DEVICE, FusedBody, Graph, GraphKernel, RegionDocument

APART, ANSWERS, EVERYTHING = "apart", "answers", "everything"
"""What `together` may be, beside the name of one strategy: nothing; what was measured to be faster by itself, of all
strategies or of one; and whatever can be one launch."""
MOST_PAIRS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Kernels that another strategy can make one launch of."""

    name: str
    strategy: str
    kernels: tuple[str, ...]
    asked: Asked = field(repr=False)
    places: Mapping[str, str] = field(repr=False)  #: Its buffer -> the vector
    writes: frozenset[str]
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)  #: Its size -> what that is in the graph
    aligned: tuple[int, ...] = field(default=(), repr=False)
    """Bytes at which parts of vectors begin that its launch is passed."""

    def saves_us(self, answers: Answers) -> float | None:
        """What it saves by its own answer: nothing unless that says to fuse; None without one."""
        record = self.asked.record(answers)
        if record is None:
            return None
        wins = record.verdict is Verdict.FUSE and record.time_us is not None
        return record.baseline_us - record.time_us if wins and record.time_us is not None else 0.0


@dataclass(slots=True)
class Together:
    """What is offered of a graph, and what is not and why."""

    graph: Graph
    offered: tuple[Offered, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()  #: (kernels, why)

    def labels(self, answers: Answers) -> tuple[str, ...]:
        """What `together` may be; empty where nothing is offered."""
        if not self.offered:
            return ()
        strategies = sorted({each.strategy for each in self.offered if (each.saves_us(answers) or 0) > 0})
        return (APART, *strategies, *((ANSWERS,) if len(strategies) > 1 else ()), EVERYTHING)

    def chosen(self, label: str, answers: Answers, without: Collection[str] = ()) -> tuple[Offered, ...]:
        """What is one launch by a label, the same kernels never twice, and without a cycle."""
        weights: dict[str, float] = {}
        for each in self.offered:
            saves = each.saves_us(answers) or 0.0
            if label == EVERYTHING:  # regions before pairs, what is known to win before the rest
                weights[each.name] = max(saves, 0.001 * len(each.kernels))
            elif label in (ANSWERS, each.strategy):
                weights[each.name] = saves
        by_name = {each.name: each for each in self.offered if each.name not in without}
        candidates = [
            GroupCandidate(name=name, nodes=frozenset(each.kernels), saves=weights.get(name, 0.0))
            for name, each in by_name.items()
        ]
        kept, _ = groups.chosen(candidates, edges(self.graph))
        return tuple(by_name[each.name] for each in kept)

    def composed(self, label: str, answers: Answers) -> Graph | Rejection:
        """The graph with what is chosen. An answer that cannot take the place of its kernels is left out, and others
        are chosen; a Rejection where none is left."""
        unfit: dict[str, Rejection] = {}
        while True:
            found: list[tuple[Offered, Fragment]] = []
            chosen = self.chosen(label, answers, unfit)
            for each in chosen:
                part = self._part(each, answers)
                if isinstance(part, Rejection):
                    unfit[each.name] = part
                else:
                    found.append((each, part))
            if not chosen:
                nothing = Rejection(rule="no_part", nodes=(self.graph.name,), detail="nothing can be one launch")
                return next(iter(unfit.values()), nothing)
            if len(found) == len(chosen):
                return composed(self.graph, found)

    def _part(self, offered: Offered, answers: Answers) -> Fragment | Rejection:
        program = offered.asked.program(answers)
        if isinstance(program, Rejection):
            return dataclasses.replace(program, nodes=offered.kernels, detail=f"{offered.name}: {program.detail}")
        named = (*self.graph.vectors, *self.graph.operands.values())
        lengths = {each.name: each.elements * DTYPES[each.dtype].bytes for each in named}
        try:
            made = fragments.fragment(program, offered.places, lengths, offered.sizes)
        except Unfit as problem:
            return Rejection(rule="no_part", nodes=offered.kernels, detail=f"{offered.name}: {problem}")
        if {*made.writes} != offered.writes:
            why = f"it writes {', '.join(made.writes)}; the kernels write {', '.join(sorted(offered.writes))}"
            return Rejection(rule="no_part", nodes=offered.kernels, detail=f"{offered.name}: {why}")
        return dataclasses.replace(made, fixed=made.fixed | graph_sizes.names(offered.aligned))


def edges(graph: Graph) -> frozenset[tuple[str, str]]:
    """(kernel, one that reads what it writes, or stores something in the place of what it reads), of one iteration in a
    loop."""
    found = set()
    for k, kernel in enumerate(graph.kernels):
        before = {graph.producer[name] for name in kernel.reads if name in graph.producer}
        before |= {reader for _, old in kernel.in_place for reader in graph.readers[old] if reader != k}
        found |= {(graph.kernels[each].name, kernel.name) for each in before}
    return frozenset(found)


# --- what is offered ------------------------------------------------------------------------------------


def found(graph: Graph, job: Job, others: Others | None) -> Together:
    """What of a graph other strategies can be asked for."""
    if others is None:
        return Together(graph, refused=(("all kernels", "no other strategy can be asked here"),))
    all_of_it = (*_regions(graph, job, others), *_pairs(graph, job, others))
    return Together(
        graph,
        offered=tuple(each for each in all_of_it if isinstance(each, Offered)),
        refused=tuple(each for each in all_of_it if not isinstance(each, Offered)),
    )


def _regions(graph: Graph, job: Job, others: Others) -> Iterable[Offered | tuple[str, str]]:
    for region in graph.regions:
        kernels = _inside(graph, region)
        if isinstance(kernels, str):
            yield region.name, kernels
            continue
        if groups.closes_cycle([kernels], edges(graph)):
            yield region.name, "kernels outside of it need its results before it has all that it reads"
            continue
        taker = others.taking(region.kind)
        if taker is None:
            yield region.name, f"no strategy that takes a {region.kind} is installed"
            continue
        strategy, key = taker
        request = {key: region.path, **region.keys}
        sizes = {name: int(value) for name, value in region.sizes.items()}
        asked = others.ask(_part(job, strategy, request, {region.path: region.text}, sizes))
        if isinstance(asked, str):
            yield region.name, asked
            continue
        places = {**region.reads, **region.writes}
        begins = {each: graph.glued.get(graph.pieces.get(each, (each,))[0], ("", 0))[1] for each in places.values()}
        uneven = next((each for each, at in begins.items() if int(at) % ALIGNMENT), None)
        if uneven is not None:
            yield region.name, f"{uneven} begins at byte {int(begins[uneven])}; its strategy counts on {ALIGNMENT}s"
            continue
        yield Offered(name=region.name, strategy=strategy, kernels=kernels, asked=asked, places=places,
                      writes=frozenset(region.writes.values()), sizes=region.sizes,
                      aligned=tuple(begins.values()))  # fmt: skip


def _inside(graph: Graph, region: RegionDocument) -> tuple[str, ...] | str:
    """The kernels between what a region reads and what it writes; or why they cannot be one."""
    reads, writes = (_pieces(graph, names.values()) for names in (region.reads, region.writes))
    inside, waiting = set(), list(writes)
    while waiting:
        name = waiting.pop()
        if name in reads:
            continue
        if name not in graph.producer:
            return f"it needs {name}, which it does not name as read"
        number = graph.producer[name]
        if number not in inside:
            inside.add(number)
            waiting += graph.kernels[number].reads
    why = _apart(graph, inside, reads, writes)
    return tuple(graph.kernels[number].name for number in sorted(inside)) if why is None else why


def _apart(graph: Graph, inside: set[int], reads: Collection[str], writes: Collection[str]) -> str | None:
    """Why kernels, by their numbers, cannot be one that reads and writes these vectors; None where they can."""
    kernels = [graph.kernels[number] for number in sorted(inside)]
    if len(kernels) < 2:
        return "it has fewer than two kernels"
    on_host = next((each.name for each in kernels if not each.device), None)
    if on_host is not None:
        return f"{on_host} is on the host"
    lasting = {*graph.outputs, *(tail for _, tail in graph.carried)}
    for name in (name for each in kernels for name in each.writes if name not in writes):
        if name in lasting or not inside.issuperset(graph.readers.get(name, ())):
            return f"{name} is needed outside of it"
    for new, old in (pair for each in kernels for pair in each.in_place):
        if old in reads and new in writes:
            return f"{new} is stored where {old} is, which it may still read"
    return None


def _pieces(graph: Graph, names: Iterable[str]) -> tuple[str, ...]:
    """The vectors that operands consist of."""
    return tuple(dict.fromkeys(each for name in names for each in graph.pieces.get(name, (name,))))


def _pairs(graph: Graph, job: Job, others: Others) -> Iterable[Offered | tuple[str, str]]:
    """Kernels that do not need each other, neighbours in the schedule first."""
    taker = others.taking("kernel")
    numbered = [(number, each) for number, each in enumerate(graph.kernels) if each.device]
    arrows = edges(graph)
    pairs = [
        (first, second)
        for first, second in itertools.combinations(numbered, 2)
        if groups.independent(first[1].name, second[1].name, arrows)
    ]
    if taker is None:
        if pairs:
            yield "pairs of kernels", "no strategy that takes kernels is installed"
        return
    pairs.sort(key=lambda pair: (pair[1][0] - pair[0][0], pair[0][0]))
    if len(pairs) > MOST_PAIRS:
        yield "pairs of kernels", f"of {len(pairs)} that do not need each other, {MOST_PAIRS} are offered"
    for pair in pairs[:MOST_PAIRS]:
        yield _pair(graph, job, others, taker, pair)


def _pair(
    graph: Graph, job: Job, others: Others, taker: tuple[str, str], pair: Sequence[tuple[int, GraphKernel]]
) -> Offered | tuple[str, str]:
    strategy, key = taker
    folder = Path(job.path).parent.resolve() / MADE
    name = " + ".join(kernel.name for _, kernel in pair)
    files: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, kernel in pair:
        document, source = _document(graph, number, kernel)
        files |= {f"{folder}/{kernel.name}.yaml": document, f"{folder}/{kernel.name}.cu": source}
        operands = (*kernel.read_operands, *kernel.write_operands)
        places |= {_place(number, position): vector for position, vector in enumerate(operands)}
    request = {key: [f"./{MADE}/{kernel.name}.yaml" for _, kernel in pair]}
    asked = others.ask(_part(job, strategy, request, files, {}))
    if isinstance(asked, str):
        return name, asked.replace(f"{folder}/", "")
    writes = frozenset(name for _, kernel in pair for name in kernel.write_operands)
    names = tuple(kernel.name for _, kernel in pair)
    known = {each: extents.size(each, value) for each, value in graph.sizes}
    sizes = {f"{kernel.name}.{each}": value for _, kernel in pair for each, value in known.items()}
    return Offered(name=name, strategy=strategy, kernels=names, asked=asked, places=places, writes=writes, sizes=sizes)


def _part(
    job: Job, strategy: str, request: Mapping[str, Any], files: Mapping[str, str], sizes: Mapping[str, int]
) -> Job:
    return dataclasses.replace(
        job, strategy=strategy, request=frozen(request), lines=frozen(), sizes=frozen(sizes), files=frozen(files),
        accept_constant=True,
    )  # fmt: skip


# --- a kernel as a document -----------------------------------------------------------------------------


def _document(graph: Graph, number: int, kernel: GraphKernel) -> tuple[str, str]:
    """(YAML, source) of a kernel of the device by itself."""
    code = body.code(dataclasses.replace(graph, kernels=(kernel,)))
    entry = code.entries[kernel.name]
    (source,) = code.sources
    arguments: list[dict[str, object]] = []
    for position, name in enumerate((*kernel.read_operands, *kernel.write_operands)):
        vector = graph.operand(name)
        role = "input" if position < len(kernel.read_operands) else "output"
        said: dict[str, object] = {"name": _place(number, position), "dtype": vector.dtype, "role": role}
        said["elements"] = text_of(vector.elements)
        if role == "input":
            said["fill"] = written_fill(Fill() if vector.fill.kind == "file" else vector.fill)
        arguments.append(said)
    for position, value in enumerate(entry.scalars):
        assert isinstance(value, Scalar)
        number = value.value if isinstance(value.value, int) else int(value.value)
        arguments.append({"name": f"v{position}", "dtype": value.dtype, "value": text_of(number)})
    document = {
        "kernel": kernel.name,
        "source": f"{kernel.name}.cu",
        "entry": entry.entry,
        "sizes": {name: int(value) for name, value in graph.sizes},
        "arguments": arguments,
        "block": {"shape": [int(each) for each in entry.block]},
        "grid": [text_of(each) for each in entry.grid],
        **({"shared": text_of(entry.shared_bytes)} if entry.shared_bytes else {}),
    }
    return json.dumps(document), source.text  # JSON is YAML


def _place(number: int, position: int) -> str:
    """An operand's name, which no other kernel of the graph has."""
    return f"k{number}_{position}"


# --- the graph with them --------------------------------------------------------------------------------


def composed(graph: Graph, made: Sequence[tuple[Offered, Fragment]]) -> Graph:
    """The graph with each fragment in the place of its kernels, in an order that all that is needed allows."""
    home = {kernel: offered.name for offered, _ in made for kernel in offered.kernels}
    kernels = {each.name: (number, each) for number, each in enumerate(graph.kernels) if each.name not in home}
    for offered, part in made:
        first = min(number for number, each in enumerate(graph.kernels) if each.name in offered.kernels)
        kernels[offered.name] = first, _fused(graph, offered, part)
    return _with_kernels(graph, _ordered(graph, kernels, home))


def _with_kernels(graph: Graph, ordered: Sequence[GraphKernel]) -> Graph:
    """The graph of other kernels, without the vectors that none of them writes."""
    there = {*graph.inputs, *(name for each in ordered for name in each.writes)}
    there |= {name for each in graph.cut if not there.isdisjoint(each.pieces) for name in each.pieces}
    return dataclasses.replace(
        graph,
        kernels=tuple(ordered),
        vectors=tuple(each for each in graph.vectors if each.name in there),
        adjacent=tuple(run for run in graph.adjacent if there.issuperset(run)),
        cut=tuple(each for each in graph.cut if there.issuperset(each.pieces)),
        runs=tuple(run for run in graph.runs if there.issuperset(run[1])),
    )


def _fused(graph: Graph, offered: Offered, part: Fragment) -> GraphKernel:
    """The kernel that a fragment is."""
    reads, writes = _pieces(graph, part.reads), _pieces(graph, part.writes)
    pairs = (pair for each in graph.kernels if each.name in offered.kernels for pair in each.in_place)
    return GraphKernel(
        name="+".join(offered.kernels),
        on=DEVICE,
        reads=reads,
        writes=writes,
        in_place=tuple((new, old) for new, old in pairs if new in writes and old in reads),
        passed=(part.reads, part.writes) if graph.cut else ((), ()),
        body=FusedBody(fragment=part),
    )


def _ordered(
    graph: Graph, kernels: Mapping[str, tuple[int, GraphKernel]], home: Mapping[str, str]
) -> list[GraphKernel]:
    """Kernels behind those whose results they need, and otherwise as the graph has them. `home`: the kernel in which
    one of the graph's has gone up."""
    needs = {name: set[str]() for name in kernels}
    for before, after in edges(graph):
        first, second = home.get(before, before), home.get(after, after)
        if first != second:
            needs[second].add(first)
    ordered: list[GraphKernel] = []
    while needs:
        ready = min((name for name, open_ in needs.items() if not open_), key=lambda name: kernels[name][0])
        ordered.append(kernels[ready][1])
        del needs[ready]
        for open_ in needs.values():
            open_.discard(ready)
    return ordered


# --- for people -----------------------------------------------------------------------------------------


def report(known: Together) -> dict[str, object]:
    """For `plan --json`."""
    return {
        "offered": [{"kernels": list(e.kernels), "strategy": e.strategy, "part": e.asked.key} for e in known.offered],
        "apart": [{"kernels": what, "why": why} for what, why in known.refused],
    }


def text(known: Together) -> str:
    """For `plan`."""
    lines = [f"  {each.name}: one launch by {each.strategy}" for each in known.offered]
    lines += [f"  {what}: apart; {why}" for what, why in known.refused]
    return "\n".join(["", "together with other strategies:", *(lines or ["  nothing is there to be fused"]), ""])


def figures(known: Together, answers: Answers) -> dict[str, float]:
    """What each strategy was asked for, and what it saves of that by its own answers: of what can be one together."""
    said: dict[str, float] = {}
    for strategy in sorted({each.strategy for each in known.offered}):
        mine = [each for each in known.offered if each.strategy == strategy]
        answered = [each for each in mine if each.saves_us(answers) is not None]
        said |= {f"{strategy}_asked": len(mine), f"{strategy}_answered": len(answered)}
        if answered:
            kept = known.chosen(strategy, answers)
            said[f"{strategy}_launches_less"] = sum(len(each.kernels) - 1 for each in kept)
            said[f"{strategy}_saves_us"] = sum(each.saves_us(answers) or 0.0 for each in kept)
    return said
