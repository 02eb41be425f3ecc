"""`fusiond plugins`: lists what each plugin registered, or why it did not load."""

import argparse
from typing import Any

from fusiond.cli import options, render
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.registry import PluginState


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    states = plugins.load().states
    if arguments.json:
        options.say_json([entry(state) for state in states])
        return 0
    render.table(
        "",
        ("plugin", "distribution", "strategies", "devices", "workloads", "problem"),
        [
            (
                state.name,
                state.distribution,
                ", ".join(state.strategies),
                ", ".join(state.devices),
                ", ".join(state.workloads),
                state.problem,
            )
            for state in states
        ],
    )
    return 0


def entry(state: PluginState) -> dict[str, Any]:
    """A plugin as JSON, here and on the socket; `problem` is null when it loaded."""
    return {
        "name": state.name,
        "distribution": state.distribution,
        "strategies": list(state.strategies),
        "devices": list(state.devices),
        "workloads": list(state.workloads),
        "problem": state.problem,
    }
