"""A stand-in for a GPU, and questions that go to no daemon of this machine."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton")

from tests.cuda.recording.conftest import answered, db, nothing_is_known
from tests.triton.stand_in import gpu, triton_cache

__all__ = ["answered", "db", "gpu", "nothing_is_known", "triton_cache"]
