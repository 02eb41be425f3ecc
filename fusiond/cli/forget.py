"""`fusiond forget`: removes the answers of a workload; without --yes it only lists them."""

import argparse

from fusiond.cli import options
from fusiond.model.english import counted
from fusiond.model.errors import NothingKnown
from fusiond.service.client.client import Client
from fusiond.store import lookup
from fusiond.store.exchange.find import exchange_of
from fusiond.store.format import lookup_name


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help="its name; of a pair, both with a comma between")
    parser.add_argument("--device", metavar="D", help="only on this device: its name, model or key")
    parser.add_argument("--yes", action="store_true", help="do it")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    name, device = options.name_of(arguments.workload), options.device(arguments)
    with Client(db=options.database(arguments)) as client:
        known = client.store.history_of_name(name)  # what was imported about it goes, too
        if device is not None:
            models = {each.info.key for each in client.store.devices() if each.info.model == device}
            known = [each for each in known if ({device} | models) & {each.device_name, each.device_key}]
        exchange = exchange_of(client.db)
        if exchange is not None and arguments.yes:
            keys = lookup.device_keys(client.db, device) | {device} if device is not None else None
            exchange.forget(lookup_name(name), sorted(keys) if keys is not None else None)
        if not known:
            raise NothingKnown(f"nothing is known about {name}" + (f" on {device}" if device else ""))
        count = client.store.forget(name, device) if arguments.yes else len(known)
    document = {"workload": name, "device": device, "answers": count, "forgotten": bool(arguments.yes)}
    devices = ", ".join(dict.fromkeys(each.device_name for each in known))
    done = "forgotten; what was measured stays until `fusiond prune`"
    text = done if arguments.yes else f"(on {devices}) would be forgotten; --yes does it"
    return options.answer(arguments, document, f"{counted(count, 'answer')} to {name} {text}")
