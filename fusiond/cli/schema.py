"""`fusiond schema KIND`: prints the JSON Schema of a YAML file, for editors."""

import argparse

from fusiond.cli import options
from fusiond.model.errors import UnknownName
from fusiond.requests import schema
from fusiond.requests.isolation import registry as plugins
from fusiond.service.daemon import config


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="job, config (the daemon's), or what a job refers to: kernel, pipeline, graph. "
        "`# yaml-language-server: $schema=FILE` as the first line of a YAML file names its schema",
    )


def run(arguments: argparse.Namespace) -> int:
    kind = arguments.kind
    known = {} if kind == "config" else schema.documents(plugins.load().strategies.values())
    known["config"] = config.schema()
    if kind not in known:
        raise UnknownName("kind of file", kind, known)
    options.say_json(known[kind])
    return 0
