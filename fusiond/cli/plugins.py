"""`fusiond plugins`: lists what each plugin registered, or why it did not load."""

import argparse
import dataclasses

from fusiond.cli import options, render
from fusiond.requests.isolation import registry as plugins


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    document = [dataclasses.asdict(each) for each in plugins.load().states]
    columns = ("plugin", "distribution", "strategies", "devices", "workloads", "problem")
    rows = ([", ".join(cell) if isinstance(cell, tuple) else cell for cell in each.values()] for each in document)
    return render.listing(arguments, document, columns, rows)
