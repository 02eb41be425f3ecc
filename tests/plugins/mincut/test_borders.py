"""Index maps against NumPy, SciPy and OpenCV, and the tiles in which exchanged indices stay."""

import ctypes
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from fusiond.model.codegen.operators import atom
from fusiond_mincut.codegen.addresses import inside
from fusiond_mincut.frontend import borders

PAD = {"clamp": "edge", "mirror": "reflect", "reflect": "symmetric", "repeat": "wrap"}
SCIPY = {"clamp": "nearest", "mirror": "mirror", "reflect": "reflect", "repeat": "grid-wrap", "constant": "constant"}


@pytest.mark.parametrize("mode", borders.MAPPED)
@given(n=st.integers(1, 9), before=st.integers(0, 40), after=st.integers(0, 40))
def test_an_index_is_what_numpy_pads_with(mode, n, before, after):
    padded = np.pad(np.arange(n), (before, after), mode=PAD[mode])
    assert [borders.index(mode, i, n) for i in range(-before, n + after)] == padded.tolist()


@pytest.mark.parametrize("mode", borders.MODES)
@pytest.mark.parametrize("offset", range(-4, 5))
def test_a_shifted_image_is_what_scipy_gives(mode, offset):
    line = np.arange(1, 6)
    weights = np.zeros(9, int)
    weights[4 + offset] = 1
    wanted = ndimage.correlate1d(line, weights, mode=SCIPY[mode], cval=77)
    got = [borders.index(mode, i + offset, 5) for i in range(5)]
    assert [77 if i is None else line[i] for i in got] == wanted.tolist()


def test_an_unknown_mode_is_an_error():
    with pytest.raises(ValueError, match="'wrap' is not a border mode"):
        borders.index("wrap", -1, 4)


def test_the_device_functions_are_the_same_maps(tmp_path, gxx_here):
    text = "#include <algorithm>\nusing std::max; using std::min;\n#define __device__\n#define __forceinline__ inline\n"
    text += "".join(borders.FUNCTIONS.values())
    text += "".join(
        f'extern "C" int {mode}(int i, int n) {{ return {mode}_index(i, n); }}\n' for mode in borders.MAPPED
    )
    text += f'extern "C" bool inside(int i, int n) {{ return {inside(atom("i"), atom("n")).code}; }}\n'
    (tmp_path / "maps.cpp").write_text(text)
    out = tmp_path / "maps.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(tmp_path / "maps.cpp"), "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))
    for n in (1, 2, 3, 8):
        for i in range(-50, 60):
            assert bool(library.inside(i, n)) == (0 <= i < n)
            for mode in borders.MAPPED:
                assert getattr(library, mode)(i, n) == borders.index(mode, i, n), (mode, i, n)


def _stays(mode, reach, halo, length, n):
    """Brute force over every tile and every access."""
    for start in range(n):
        tile = range(start - halo[0], start + length + halo[1])
        for x in range(n):
            for offset in range(-reach[0], reach[1] + 1):
                exchanged = borders.index(mode, x + offset, n)
                if x + offset in tile and exchanged is not None and exchanged not in tile:
                    return False
    return True


@pytest.mark.parametrize("mode", borders.MODES)
def test_exchanged_indices_stay_in_the_tile_exactly_when_said(mode):
    for below in range(4):
        for above in range(4):
            for reach in ((r, s) for r in range(below + 1) for s in range(above + 1)):
                for length in (1, 2, 5):
                    wanted = all(_stays(mode, reach, (below, above), length, n) for n in range(1, 9))
                    said = borders.stays_near(mode, reach, (below, above), length)
                    assert said <= wanted, (reach, below, above, length)
                    if mode != "repeat":
                        assert said == wanted, (reach, below, above, length)
