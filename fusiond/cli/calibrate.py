"""`fusiond calibrate`: measures what measuring costs on a device, and the device's ceilings."""

import argparse
from contextlib import closing

from fusiond.cli import options, output, render
from fusiond.devices.calibration import FIGURES, calibrate
from fusiond.model.errors import DeviceError, UnknownName
from fusiond.requests.isolation import registry as plugins
from fusiond.store.database import Store


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", help="cpu, cuda:N; default: the first GPU, else cpu")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    registry = plugins.load()
    here = {info.name: info for _, info in registry.devices()}
    gpus = [name for name, info in here.items() if info.evidence == "measured"]
    name = arguments.device or next(iter([*gpus, *here]), "")
    if not name:
        raise DeviceError("there is no device here: see `fusiond doctor`")
    if name not in here:
        raise UnknownName("device", name, here, where="DEVICE")
    info = here[name]
    driver = info.env.get("driver", "")
    figures = calibrate(registry.provider(name, where="DEVICE"), info)
    if figures:
        with closing(Store.open(options.database(arguments))) as store:
            store.save_device(info)
            store.add_calibration(info.key, driver, figures)
    if arguments.json:
        options.say_json({"device": name, "driver": driver, "figures": figures})
    elif figures:
        known = [(figure, *said) for figure, said in FIGURES.items() if figure in figures]
        rows = [(figure, f"{figures[figure]:.4g} {unit}", what) for figure, unit, what in known]
        render.table(f"{info.model}, driver {driver}", ("figure", "value", "what it is"), rows)
    else:
        output.say(f"{name}: there is nothing to calibrate, its times are {info.evidence}")
    return 0
