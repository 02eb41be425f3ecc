"""PTX by Triton without what it says of its source's file."""

import gzip
import itertools
import re
from pathlib import Path

from fusiond.model.ptx.triton import without_lines

TEXT = gzip.decompress((Path(__file__).parents[2] / "ptx_data" / "softmax_sm_90.ptx.gz").read_bytes()).decode()
SECTIONS = """
\t.file\t1 "/home/someone" "softmax.py"
\t.section\t.debug_abbrev
\t{
.b8 1                                   // Abbreviation Code
.b8 17
\t}
\t.section\t.debug_macinfo\t{\t}
"""


def test_the_same_kernel_of_another_file_is_the_same_text() -> None:
    plain = without_lines(TEXT)
    assert ".loc" not in plain
    assert ".section" not in plain
    numbers = itertools.count()
    lined = re.sub(
        r"^\t(?=[a-z@])", lambda _: f"\t.loc\t1 {next(numbers)} 0 // softmax.py\n\t", plain, flags=re.MULTILINE
    )
    assert lined.count(".loc") > 50
    assert without_lines(lined + SECTIONS).split() == plain.split()
    assert without_lines(plain) == plain
