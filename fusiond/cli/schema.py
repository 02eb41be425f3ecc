"""`fusiond schema job|config`: JSON Schemas of YAML files, by which editors complete them and mark mistakes."""

from __future__ import annotations

import argparse

from fusiond.cli import options
from fusiond.daemon import config_schema
from fusiond.isolation import registry as plugins
from fusiond.requests import schema


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("job", "config"),
        help="of job files, or of the daemon's; `# yaml-language-server: $schema=FILE` in such a file names it",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "config":
        options.say_json(config_schema.config())
    else:
        options.say_json(schema.job(plugins.load().strategies.values()))
    return 0
