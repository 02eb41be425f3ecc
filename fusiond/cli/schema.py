"""`fusiond schema job`: the JSON Schema of job files, by which editors complete them and mark mistakes."""

from __future__ import annotations

import argparse

from fusiond.cli import options
from fusiond.isolation import registry as plugins
from fusiond.requests import schema


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("job",), help="what it is of; `# yaml-language-server: $schema=FILE` in a job file names it"
    )


def run(arguments: argparse.Namespace) -> int:
    options.say_json(schema.job(plugins.load().strategies.values()))
    return 0
