"""y = scale * x + y by one kernel; how many elements each thread takes, and how large the blocks are, is searched."""

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.codegen.code import cpp, name
from fusiond.model.codegen.statements import Statements, function
from fusiond.model.inputs import values
from fusiond.model.language.extents import ceil_div, size
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload, frozen
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source, default_compare, sized
from fusiond.strategy import Answers, Baseline, Inputs, StrategyBase, Target
from fusiond.strategy.space import Parameter, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Saxpy:
    n: int
    scale: int
    fill: Fill  #: Of x and y


class SaxpyUnroll(StrategyBase[Saxpy, Target]):
    name = "saxpy-unroll"
    version = 1
    job_keys: tuple[str, ...] = ("saxpy",)
    names = frozen({"saxpy": "saxpy"})

    def parse(self, job: Job, inputs: Inputs) -> Workload[Saxpy]:
        where = job.where("saxpy")
        path = inputs.resolve("saxpy", str(job.request.get("saxpy", "small")), where=where)
        document = inputs.document(path, where=where)
        keys = document.mapping(known=("n", "scale", "fill"), required=("n", "scale"))
        scale = keys["scale"].integer(least=-1000, most=1000)
        n = values.job_sizes(job, ("n",), most=2**30).get("n", keys["n"].integer(least=1, most=2**30))
        fill = values.fill(keys["fill"], "float32") if "fill" in keys else Fill(kind="uniform")
        return Workload(
            strategy=self.name, strategy_version=self.version, name="saxpy", members=("saxpy",), sizes=frozen({"n": n}),
            content={"scale": scale, "fill": fill.content}, payload=Saxpy(n=n, scale=scale, fill=fill),
        )  # fmt: skip

    def analyse(self, workload: Workload[Saxpy], target: Target) -> Analysis[Saxpy, Target]:
        return Analysis(workload=workload, report=frozen({"bytes": 12 * workload.sizes["n"]}), payload=target)

    def space(self, analysis: Analysis[Saxpy, Target], answers: Answers) -> Space:
        return Space(
            parameters=(
                Parameter(name="unroll", values=(1, 2, 4, 8)),
                Parameter(name="threads", values=(64, 128, 256)),
            ),
            restrictions=("unroll * threads <= 1024",),
        )

    def seeds(
        self, analysis: Analysis[Saxpy, Target], space: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        return (("plain", Config.of({"unroll": 1, "threads": 128})), ("wide", Config.of({"unroll": 4, "threads": 128})))

    def baselines(self, analysis: Analysis[Saxpy, Target]) -> tuple[Baseline, ...]:
        space = Space(parameters=(Parameter(name="threads", values=(128, 256)),))

        def emit(config: Config) -> Program:
            return _program(analysis.workload.payload, 1, config.integer("threads"))

        return (Baseline(name="plain", detail="one element a thread", space=space, emit=emit),)

    def emit(self, analysis: Analysis[Saxpy, Target], config: Config, answers: Answers) -> Program | Rejection:
        saxpy = analysis.workload.payload
        unroll = config.integer("unroll")
        if unroll > saxpy.n:
            detail = f"{unroll} elements a thread, and there are {saxpy.n}"
            return Rejection(rule="too_few", nodes=("saxpy",), detail=detail)
        return _program(saxpy, unroll, config.integer("threads"))

    def odd_sizes(self, workload: Workload[Saxpy]) -> Mapping[str, int]:
        return {"n": 1237}


def _program(saxpy: Saxpy, unroll: int, threads: int) -> Program:
    body = Statements()
    i, n = body.declare("int", "i", cpp("(blockIdx.x * blockDim.x + threadIdx.x) * {}", unroll)), name("n")
    for k in range(unroll):
        at = cpp("{} + {}", i, k)
        body.line(cpp("if ({0} < {1}) y[{0}] = scale * x[{0}] + y[{0}];", at, n))
    text = function("__global__ void saxpy", ("const float* x", "float* y", "float scale", "int n"), body)
    compare = default_compare("float32")
    elements = size("n", saxpy.n)
    made = Program(
        name=f"saxpy by {unroll}",
        buffers=(
            Buffer(name="x", dtype="float32", elements=elements, role=Role.INPUT, fill=saxpy.fill),
            Buffer(name="y", dtype="float32", elements=elements, role=Role.INOUT, fill=saxpy.fill, compare=compare),
        ),
        sources=(Source(name="saxpy", text=text, entries=("saxpy",)),),
        steps=(
            Launch(
                name="saxpy", source="saxpy", entry="saxpy", grid=(ceil_div(elements, threads * unroll), 1, 1),
                block=(threads, 1, 1),
                arguments=(Pointer(buffer="x"), Pointer(buffer="y"), Scalar(dtype="float32", value=saxpy.scale),
                           Scalar(dtype="int32", value=elements)),
            ),
        ),
    )  # fmt: skip
    return sized(made, {"n": saxpy.n})
