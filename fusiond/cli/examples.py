"""`fusiond examples [COPY_TO]`: the job files that come with fusiond.

A copy has the JSON Schemas beside it, those of kernels, pipelines and graphs for one's own, and each of its jobs a line
by which editors find that of jobs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sysconfig
from pathlib import Path

import fusiond
from fusiond.cli import options, output
from fusiond.errors import FusiondError, RequestError
from fusiond.isolation import registry as plugins
from fusiond.requests import schema
from fusiond.words import counted

INSTALLED = Path("share") / "fusiond" / "examples"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("copy_to", metavar="COPY_TO", nargs="?", help="a folder that is made, and gets a copy of them")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def run(arguments: argparse.Namespace) -> int:
    folder = examples_folder()
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    written: list[str] = []
    if arguments.copy_to is not None:
        target = Path(arguments.copy_to).expanduser()
        if target.exists():
            raise RequestError(f"{target} is there already; name a folder that is not", where="COPY_TO")
        shutil.copytree(folder, target)
        schemas = []
        for kind, found in schema.documents(plugins.load().strategies.values()).items():
            schemas.append(target / f"{kind}.schema.json")
            schemas[-1].write_text(json.dumps(found, indent=1) + "\n")
        for each in files:
            if each.suffix == ".yaml":
                path, up = target / each, "../" * (len(each.parts) - 1)
                path.write_text(f"# yaml-language-server: $schema={up}job.schema.json\n{path.read_text()}")
        written = [*(str(target / each) for each in files), *map(str, schemas)]
    if arguments.json:
        options.say_json({"folder": str(folder), "files": [str(each) for each in files], "written": written})
    elif written:
        output.say(f"{counted(len(written), 'file')} in {arguments.copy_to}; `fusiond plan {written[0]}` shows one")
    else:
        output.say(*(f"{each!s:<40} {_title(folder / each)}".rstrip() for each in files))
    return 0


def examples_folder() -> Path:
    """Where they are: in the source tree, or where the wheel has put them. FusiondError where neither has them."""
    places = (Path(fusiond.__file__).parents[1] / "configs" / "jobs", Path(sysconfig.get_path("data")) / INSTALLED)
    for place in places:
        if place.is_dir():
            return place
    raise FusiondError(f"the examples are not there: neither {places[0]} nor {places[1]} is a folder")


def _title(path: Path) -> str:
    """What its first comment says."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix("#").strip()[:90] if first.startswith("#") else ""
