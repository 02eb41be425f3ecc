"""Lower bounds of captured kernels, counted one by one from their documents."""

from collections.abc import Iterable

from fusiond.build.working import working_folder
from fusiond.cuda.capture.documents import Undescribed
from fusiond.cuda.capture.picked_kernels import Picking
from fusiond.cuda.capture.trace import CapturedLaunch, CapturedTrace
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import Gpu
from fusiond.model.errors import FusiondError
from fusiond.model.program import Program
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins

MOST_COUNTED = 30  #: Kernels, those of the most launches or time first: each takes a second or more


def counted(trace: CapturedTrace, launches: Iterable[CapturedLaunch], gpu: Gpu) -> dict[int, tuple[float, str]]:
    """By a kernel's number: its bound in us, and what binds it. Those that cannot be counted are left out.

    MachineFault where the machine does not let it run."""
    registry, programs = plugins.load(), dict[str, Program]()
    with working_folder("bounds") as folder:
        picking = Picking(trace, folder)
        for launch in launches:
            try:
                *_, path = picking.job([launch])
                (job,) = jobs.read(str(path))
                prepared = planning.prepare(registry, job)
                analysis = prepared.strategy.analyse(prepared.workload, planning.target_for_arch(gpu.arch, registry))
                programs[str(launch.kernel.number)] = planning.reference(prepared.strategy, analysis)
            except (Undescribed, FusiondError):
                continue
            if len(programs) == MOST_COUNTED:
                break
        rows = child_process.counted(programs, model=gpu.name)
    return {int(row["program"]): (row["bound_us"], row["binding"]) for row in rows if row["bound_us"] is not None}
