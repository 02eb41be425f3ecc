"""Runs launches by Triton's own interpreter: `TRITON_INTERPRET=1 python -m tests.triton.interpreted ASKED.pickle OUT`.

Arrays are NumPy's, in what the interpreter takes for a tensor; of torch it needs no more than that.
"""

# mypy: ignore-errors
import importlib.util
import pickle
import sys
from pathlib import Path


class Tensor:
    def __init__(self, array) -> None:
        self._array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, count, device):
        return self

    def set_(self, *_) -> None:
        """It is there already."""

    def copy_(self, _) -> None:
        """It is in place."""

    def storage_offset(self) -> int:
        return 0

    def size(self):
        return self._array.shape

    def stride(self):
        return self._array.strides


def main(asked: str, answered: str) -> None:
    spec = importlib.util.spec_from_file_location("kernels", Path(__file__).with_name("kernels.py"))
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    launches = pickle.loads(Path(asked).read_bytes())
    for name, grid, arrays, others in launches:
        getattr(kernels, name)[grid](**{key: Tensor(each) for key, each in arrays.items()}, **others)
    Path(answered).write_bytes(pickle.dumps([arrays for _, _, arrays, _ in launches]))


if __name__ == "__main__":
    main(*sys.argv[1:])
