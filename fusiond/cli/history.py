"""`fusiond history`: lists all answers that a workload ever had, and why each was replaced. Works without a daemon."""

import argparse

from fusiond.cli import options, render
from fusiond.cli.answers import COLUMNS, row
from fusiond.model.errors import NothingKnown
from fusiond.service.client.client import Client
from fusiond.service.wire import answer_entry
from fusiond.store import lookup


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help="its name; of a pair, both with a comma between")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    name = options.name_of(arguments.workload)
    with Client(db=options.database(arguments)) as client:
        found = client.store.history_of_name(name)
        if not found:
            near = lookup.suggestions(client.db, name)
            known = f"; there are answers for {', '.join(near)}" if near else ""
            raise NothingKnown(f"nothing was ever found about {name}{known}")
    if arguments.json:
        options.say_json([answer_entry(each) for each in found])
        return 0
    columns = ("found (UTC)", "sizes", *COLUMNS[3:], "the one before went")
    lines = []
    for each in found:
        first, _, _, *rest = row(each)
        sizes = ", ".join(f"{size}={value}" for size, value in each.sizes.items())
        lines.append((first, sizes, *rest, each.replaced))
    render.table(name, columns, lines)
    return 0
