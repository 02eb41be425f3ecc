"""`python -m fusiond.devices.cuda.run BUNDLE [--inputs X.npz] [--outputs Y.npz]`: a bundle on a GPU.

NumPy and PyCUDA are all that it needs.
"""

import sys

from fusiond.devices import run
from fusiond.devices.cuda.description import index_of
from fusiond.devices.cuda.executor import CudaExecutor


def main(argv: list[str]) -> int:
    return run.main(argv, device="cuda:0", executor=lambda name: CudaExecutor.open(index_of(name)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
