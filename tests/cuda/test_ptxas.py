"""The report of `ptxas -v`: logs taken from CUDA 13.0, and one in the older format."""

from fusiond.model.gpu.ptxas_report import parse_report

CAPPED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_90'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.497 ms
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    176 bytes stack frame, 292 bytes spill stores, 296 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 176 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compile time = 15.394 ms
ptxas info    : Function properties for _Z1ffi
    0 bytes stack frame, 44 bytes spill stores, 48 bytes spill loads
"""


def test_every_entry_is_reported() -> None:
    found = parse_report(CAPPED)
    assert sorted(found) == ["k", "small"]
    k = found["k"]
    assert (k.arch, k.registers, k.barriers, k.shared_bytes, k.stack_bytes) == ("sm_90", 40, 2, 2048, 176)


def test_spills_of_a_called_function_count_for_the_entry_that_calls() -> None:
    found = parse_report(CAPPED)
    assert (found["k"].spill_store_bytes, found["k"].spill_load_bytes) == (292 + 44, 296 + 48)
    assert (found["small"].spill_store_bytes, found["small"].spill_load_bytes) == (0, 0)


def test_the_older_format_with_constant_banks() -> None:
    log = """\
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_75'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, 512+16 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
"""
    facts = parse_report(log)["_Z3addPf"]
    assert (facts.registers, facts.shared_bytes, facts.barriers, facts.constant_bytes) == (24, 512, 0, 368)
