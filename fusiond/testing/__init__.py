"""For the tests of plugin authors: contract tests.

    fusiond.testing.strategies   contract tests that any strategy must pass
    fusiond.testing.devices      contract tests that any device must pass

pytest is needed for the contract tests only.
"""

import sys

if "pytest" in sys.modules:  # outside of this tree pytest shows what was compared only where it is asked to
    import pytest

    pytest.register_assert_rewrite("fusiond.testing.strategies", "fusiond.testing.devices")
