"""Writes kernels of a capture as files: their YAML, their PTX and a job."""

import functools
from collections.abc import Sequence
from pathlib import Path

from fusiond.cuda.capture import documents
from fusiond.cuda.capture.code import code_of, textures
from fusiond.cuda.capture.documents import Undescribed
from fusiond.cuda.capture.regions import Regions
from fusiond.cuda.capture.trace import CapturedKernel, CapturedLaunch, CapturedTrace
from fusiond.cuda.recording.group_job import file_digest
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import Job
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.jobs import JobInputs


class Picking:
    """Writes kernels of a trace to a folder."""

    def __init__(self, trace: CapturedTrace, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._regions, self._launches = Regions(trace), by_kernel(trace)
        registry = plugins.load()
        self._strategy = next(each for each in registry.strategies.values() if ".ptx" in each.drafts)
        job = Job(strategy=self._strategy.name, request={}, sizes={}, path=str(folder / "job.yaml"))
        self._inputs = functools.partial(JobInputs, registry, job)

    def kernel(self, launch: CapturedLaunch, name: str = "") -> Path:
        """The YAML of a launch; Undescribed. `name`: of the kernel and its file."""
        kernel = launch.kernel
        code = code_of(kernel)
        if isinstance(code, str):
            raise Undescribed(code)
        if textures(code, kernel.name):
            raise Undescribed("it reads textures or surfaces, and no buffer is one")
        own = code.module.function(kernel.name).directive("reqnctapercluster") or ()
        if launch.cluster not in ((1, 1, 1), (*own, 1, 1, 1)[:3]):
            lengths = " x ".join(map(str, launch.cluster))
            raise Undescribed(
                f"it was launched in clusters of {lengths} blocks; only those of __cluster_dims__ are known"
            )
        source = self._folder / f"{file_digest(code.text)}.ptx"
        if not source.is_file():
            source.write_text(code.text, encoding="utf-8")
        try:
            draft = self._strategy.draft(str(source), kernel.name, self._inputs(), ())
        except FusiondError as problem:
            raise Undescribed(str(problem)) from None
        name = name or _name(kernel)
        launches = [launch, *self._launches[kernel]]
        text = documents.described(launches, self._regions, draft, code, self._folder, name)
        path = self._folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def job(self, launches: Sequence[CapturedLaunch], name: str = "", remarks: Sequence[str] = ()) -> list[Path]:
        """The kernels' files, and then the job's. A kernel that is there in several shapes has a file for each."""
        files: dict[CapturedLaunch, Path] = {}
        for each in launches:
            again = sum(known.kernel == each.kernel for known in files)
            if each not in files:
                files[each] = self.kernel(each, f"{_name(each.kernel)}_at_{again + 1}" if again else "")
        found = [files[each].name for each in launches]
        name = name or "job_" + "_".join(str(each.kernel.number) for each in launches)
        path = self._folder / f"{name}.yaml"
        path.write_text(documents.job(self._strategy.name, found, remarks), encoding="utf-8")
        return [*files.values(), path]


def _name(kernel: CapturedKernel) -> str:
    return f"{documents.plain_name(kernel.name)}_{kernel.number}"


def by_kernel(trace: CapturedTrace) -> dict[CapturedKernel, list[CapturedLaunch]]:
    found: dict[CapturedKernel, list[CapturedLaunch]] = {}
    for each in trace.launches:
        found.setdefault(each.kernel, []).append(each)
    return found
