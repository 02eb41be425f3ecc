"""`fusiond examples [COPY_TO]`: lists or copies the job files and programs that come with fusiond.

A copy has the JSON Schemas beside it, those of kernels, pipelines and graphs for one's own, and each of its jobs a line
by which editors find that of jobs.
"""

import argparse
import json
import re
import shutil
import sysconfig
from pathlib import Path

import fusiond
from fusiond.cli import options
from fusiond.model.english import counted
from fusiond.model.errors import FusiondError, RequestError
from fusiond.requests import schema
from fusiond.requests.isolation import registry as plugins

INSTALLED = Path("share") / "fusiond" / "examples"
IN_THE_SOURCE = Path(fusiond.__file__).parents[1] / "configs" / "jobs"
PROGRAMS = ("jax", "torch")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("copy_to", metavar="COPY_TO", nargs="?", help="a folder that is made, and gets a copy of them")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def run(arguments: argparse.Namespace) -> int:
    found = files()
    written: list[str] = []
    if arguments.copy_to is not None:
        target = Path(arguments.copy_to).expanduser()
        if target.exists():
            raise RequestError(f"{target} is there already; name a folder that is not", where="COPY_TO")
        for each, source in found.items():
            (target / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / each)
        documents = schema.documents(plugins.load().strategies.values())
        schemas = [target / f"{kind}.schema.json" for kind in documents]
        for path, document in zip(schemas, documents.values(), strict=True):
            path.write_text(json.dumps(document, indent=1) + "\n")
        for each in found:
            if each.suffix == ".yaml":
                path, up = target / each, "../" * (len(each.parts) - 1)
                text = path.read_text()
                kind = next((kind for kind in documents if re.search(rf"^{kind}:", text, re.MULTILINE)), "job")
                kind = "job" if re.search(r"^strategy:", text, re.MULTILINE) else kind
                path.write_text(f"# yaml-language-server: $schema={up}{kind}.schema.json\n{text}")
        written = [*(str(target / each) for each in found), *map(str, schemas)]
    lines = [f"{each!s:<40} {_title(source)}".rstrip() for each, source in found.items()]
    if written:
        lines = [f"{counted(len(written), 'file')} in {arguments.copy_to}; `fusiond plan {written[0]}` shows one"]
    document = {"folder": str(examples_folder()), "files": [*map(str, found)], "written": written}
    return options.answer(arguments, document, *lines)


def files() -> dict[Path, Path]:
    """Their names, in their order, and where each is. Programs are in folders of their own, jax and torch."""
    folder = examples_folder()
    found = {
        path.relative_to(folder): path
        for path in folder.rglob("*.*")
        if path.is_file() and path.parent.name != "__pycache__"  # pip compiles programs that it installs
    }
    if folder == IN_THE_SOURCE:
        found |= {
            path.relative_to(folder.parent): path for name in PROGRAMS for path in (folder.parent / name).glob("*.py")
        }
    return dict(sorted(found.items()))


def examples_folder() -> Path:
    """Where the job files are: in the source tree, or where the wheel has put them. FusiondError where neither has
    them."""
    places = (IN_THE_SOURCE, Path(sysconfig.get_path("data")) / INSTALLED)
    for place in places:
        if place.is_dir():
            return place
    raise FusiondError(f"the examples are not there: neither {places[0]} nor {places[1]} is a folder")


def _title(path: Path) -> str:
    """What its first comment or docstring says."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    title = first.removeprefix("#").removeprefix("//").removeprefix('"""')
    return title.strip()[:90] if title != first else ""
