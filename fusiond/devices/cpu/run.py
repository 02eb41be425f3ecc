"""`python -m fusiond.devices.cpu.run BUNDLE [--inputs X.npz] [--outputs Y.npz]`: a bundle on the processor."""

import sys

from fusiond.devices import run
from fusiond.devices.cpu.executor import CpuExecutor


def main(argv: list[str]) -> int:
    return run.main(argv, device="cpu", executor=lambda name: CpuExecutor())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
