"""Fills in the draft of a kernel's source from a capture of a program that launched it (`fusiond init --from`)."""

from pathlib import Path

from fusiond.cuda.capture import documents, trace
from fusiond.cuda.capture.code import code_of
from fusiond.cuda.capture.documents import Undescribed
from fusiond.cuda.capture.picked_kernels import by_kernel
from fusiond.cuda.capture.regions import Regions
from fusiond.cuda.recording.origins import short_name
from fusiond.model.errors import RequestError
from fusiond.model.inputs.documents import drafted


class CapturedKernels:
    """Those of a capture's folder, by their names. RequestError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trace = trace.read(folder)[0]
        self._kernels = by_kernel(self._trace)

    def instance(self, name: str) -> str:
        """What was launched of a template that is named without its arguments; else the name itself."""
        found = {short_name(each.name) for each in self._kernels}
        instances = [each for each in found if "<" in each and name and _plain(each) == name.rpartition("::")[2]]
        return instances[0] if len(instances) == 1 else name

    def filled(self, draft: str, folder: Path | None) -> str:
        """The draft's text. folder: where files of contents go; None: nowhere, and nothing is said of contents."""
        keys = drafted(draft, "draft")[0].mapping()
        entry = keys["instance"].text() if "instance" in keys else keys["entry"].text()
        function = entry.partition("(")[0]
        count = len(keys["arguments"].sequence())
        found = [
            each
            for each, launches in self._kernels.items()
            if _words(function) in (_words(short_name(each.name)), each.name) and len(launches[0].arguments) == count
        ]
        if len(found) != 1:
            names = sorted({short_name(each.name) for each in self._kernels})
            launched = f"{len(found)} kernels of this name" if found else f"no {entry}; it has {', '.join(names[:8])}"
            raise RequestError(f"the capture has {launched}", where=str(self._folder))
        launches, code = self._kernels[found[0]], code_of(found[0])
        launch = documents.representative(launches)
        known = None if isinstance(code, str) else code
        try:
            return documents.described([launch, *launches], Regions(self._trace), draft, known, folder)
        except Undescribed as why:
            raise RequestError(str(why), where=str(self._folder)) from None


def _plain(instance: str) -> str:
    return instance.partition("<")[0].rpartition("::")[2]


def _words(name: str) -> str:
    return "".join(name.split())
