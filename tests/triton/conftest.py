"""A stand-in for a GPU, and questions that go to no daemon of this machine."""

import importlib.util

from tests.cuda.recording.conftest import answered, db, nothing_is_known, on_gpu

__all__ = ["answered", "db", "nothing_is_known", "on_gpu"]
if importlib.util.find_spec("triton") is not None:
    from tests.triton.stand_in import gpu, triton_cache

    __all__ += ["gpu", "triton_cache"]
