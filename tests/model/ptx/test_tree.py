"""The parser, the printer and the changes of PTX: against ptxas, and against texts that are awkward on purpose."""

import gzip
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.ptx import flat, operands, parser, printer, rewrite
from fusiond.model.ptx.operands import Negated, PtxAddress, PtxGroup, PtxName, PtxNumber, PtxTensorAddress, PtxVector
from fusiond.model.ptx.tree import Instruction, Label, PtxBlock, PtxError

TRITON = sorted((Path(__file__).parents[2] / "ptx_data").glob("*.ptx.gz"))
NVCC = sorted((Path(__file__).parents[2] / "devices" / "counting" / "data").glob("*.ptx"))
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
needs_ptxas = pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas on PATH")


def text_of(path: Path) -> str:
    return gzip.open(path, "rt").read() if path.suffix == ".gz" else path.read_text()


def kernel(body: str, head: str = "") -> str:
    return f"{HEAD}{head}.visible .entry k(.param .u64 p)\n{{\n{body}\n}}\n"


def code(text: str, folder: Path) -> bytes | str:
    """What ptxas makes of a text, for the architecture that it names: the sections of code alone."""
    (folder / "in.ptx").write_text(text)
    arch = parser.parse(text).target[0]
    command = ["ptxas", f"-arch={arch}", str(folder / "in.ptx"), "-o", str(folder / "out.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr
    return sections((folder / "out.cubin").read_bytes())


def sections(binary: bytes) -> bytes:
    """The code of a cubin (ELF of 64 bits), kernel by kernel."""
    (table,) = struct.unpack_from("<Q", binary, 40)
    size, count, names_at = struct.unpack_from("<HHH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + size * each) for each in range(count)]
    names = headers[names_at][4]
    found = []
    for name, _, _, _, offset, length in headers:
        begin = names + name
        if binary[begin:].startswith(b".text."):
            found.append(binary[offset : offset + length])
    return b"".join(found)


@needs_ptxas
@pytest.mark.parametrize("path", [*TRITON, *NVCC], ids=lambda path: path.name.partition(".")[0])
def test_what_is_parsed_and_printed_assembles_to_the_same_code(path, tmp_path):
    text = text_of(path)
    before = code(text, tmp_path)
    if isinstance(before, str):
        pytest.skip(f"this ptxas does not take it: {before.splitlines()[0][:80]}")
    assert before
    assert code(printer.printed(parser.parse(text)), tmp_path) == before


@pytest.mark.parametrize("path", [*TRITON, *NVCC], ids=lambda path: path.name.partition(".")[0])
def test_printing_is_stable_and_loses_no_instruction(path):
    text = text_of(path)
    module = parser.parse(text)
    printed = printer.printed(module)
    again = parser.parse(printed)
    assert printer.printed(again) == printed
    assert [[(i.guard, i.opcode, i.words) for i in rewrite.instructions(f.body)] for f in again.entries.values()] == [
        [(i.guard, i.opcode, i.words) for i in rewrite.instructions(f.body)] for f in module.entries.values()
    ]
    statements = sum(1 for f in module.functions if f.body for _ in rewrite.instructions(f.body))
    assert statements > 5


def test_scopes_keep_registers_and_labels_apart():
    body = "{ .reg .b32 %r<2>; L: add.u32 %r1, %r1, 1; @%p bra L; } { .reg .f32 %r<2>; L: neg.f32 %r1, %r1; bra L; }"
    found = flat.parse(kernel(f".reg .pred %p;\n{body}")).kernels["k"]
    first, jump, second, back = found.instructions
    assert first.operands[0] != second.operands[0]
    assert {found.registers[each.operands[0].name] for each in (first, second)} == {"b32", "f32"}
    assert jump.operands != back.operands
    assert [found.labels[each.operands[0].name] for each in (jump, back)] == [0, 2]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mov.u32 %r1, -1", (PtxName("%r1"), PtxNumber(2**64 - 1))),
        ("mov.f32 %f1, 0f3F800000", (PtxName("%f1"), PtxNumber(0x3F800000, 4))),
        ("mov.f64 %d1, 0d3FF0000000000000", (PtxName("%d1"), PtxNumber(0x3FF0000000000000, 8))),
        ("mov.u32 %r1, 017", (PtxName("%r1"), PtxNumber(15))),
        ("ld.u32 %r1, [%rd1+-8]", (PtxName("%r1"), PtxAddress(PtxName("%rd1"), -8))),
        ("ld.v2.u32 {%r1,%r2}, [x]", (PtxVector((PtxName("%r1"), PtxName("%r2"))), PtxAddress(PtxName("x"), 0))),
        ("mov.u64 %rd1, x+16", (PtxName("%rd1"), PtxName("x", 16))),
        ("selp.u32 %r1, 1, 0, !%p1", (PtxName("%r1"), PtxNumber(1), PtxNumber(0), Negated(PtxName("%p1")))),
        ("call.uni (r), f, (a, b), proto",
         (PtxGroup((PtxName("r"),)), PtxName("f"), PtxGroup((PtxName("a"), PtxName("b"))), PtxName("proto"))),
        (
            "cp [%r1], [%rd1, {%r2, %r3}], [%r4]",
            (PtxAddress(PtxName("%r1"), 0),
             PtxTensorAddress(PtxName("%rd1"), PtxVector((PtxName("%r2"), PtxName("%r3")))),
             PtxAddress(PtxName("%r4"), 0)),
        ),
    ],
)  # fmt: skip
def test_operands_have_their_kinds(text, wanted):
    (instruction,) = rewrite.instructions(parser.parse(kernel(f"{text};")).function("k").body)
    assert operands.parse(instruction) == wanted


@given(st.integers(-(2**63), 2**64 - 1))
def test_numbers_are_the_bits_that_python_says(value):
    (instruction,) = rewrite.instructions(parser.parse(kernel(f"mov.b64 %rd1, {value};")).function("k").body)
    assert operands.parse(instruction)[1] == PtxNumber(value % 2**64)


def test_statements_may_stand_anywhere_on_a_line():
    body = (
        parser.parse(kernel("L: mov.u32 %r1, 1; add.u32 %r1,\n %r1, 2; { ret; } /* a\nb */ bra L;")).function("k").body
    )
    kinds = [type(each) for each in body.statements]
    assert kinds == [Label, Instruction, Instruction, PtxBlock, Instruction]
    assert [each.line for each in body.statements] == [6, 6, 6, 7, 8]


def test_an_instruction_keeps_its_text_and_a_name_is_replaced_wherever_it_stands():
    body = (
        parser.parse(kernel("mov.u32  %r1,x;\n@!%p1 ld.u32 %r2, [x+4]; // x\nadd.u32 %r1, %r12, 0f3F800000;"))
        .function("k")
        .body
    )
    changed = rewrite.mapped(body, {"x": "%a_x", "%r1": "%r7"}, {}, {})
    assert [printer.instruction_text(each) for each in changed.statements] == [
        "mov.u32 %r7,%a_x;", "@!%p1 ld.u32 %r2, [%a_x+4];", "add.u32 %r7, %r12, 0f3F800000;"
    ]  # fmt: skip
    assert rewrite.words_of(body) == {"%r1", ",", "x", "%r2", "[", "+", "4", "]"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel("mov.u32 %r1, 1"), "';' is missing behind 'mov.u32 %r1 , 1'"),
        (kernel("mov.u32 %r1, 1;").rstrip().removesuffix("}"), "the text ends in the middle"),
        (kernel(".reg .q32 %r1;"), "registers of a type that is not known"),
        (kernel(".huh 3;"), "'.huh' is not known"),
        (".version 8.0\n", "it has no .target"),
        (HEAD + "}", "'}' closes nothing"),
    ],
)
def test_what_is_no_ptx_names_its_line(text, message):
    with pytest.raises(PtxError, match=r"PTX line \d+: ") as problem:
        parser.parse(text)
    assert message in str(problem.value)


def test_a_kernel_reaches_what_it_calls_by_name_and_by_table():
    text = f"""{HEAD}
.func f() {{ ret; }}
.func g() {{ call f; ret; }}
.func unused() {{ ret; }}
.global .u64 table[2] = {{generic(f), g}};
.const .u32 other = 5;
.visible .entry k() {{ .reg .b64 %rd<2>; ld.global.u64 %rd1, [table]; ret; }}
"""
    module = parser.parse(text)
    functions, variables, _ = rewrite.reached(module, module.function("k"))
    assert [each.name for each in functions] == ["f", "g"]
    assert [each.name for each in variables] == ["table"]
    assert flat.parse(text).variables[0].values == (PtxName("f"), PtxName("g"))


def test_a_prototype_is_a_label_and_a_directive(tmp_path):
    text = kernel(
        ".reg .b64 %rd<2>;\n{\n.param .b32 retval0;\nprototype_2 : .callprototype (.param .b32 _) _ ();\n"
        "call (retval0), %rd1, (), prototype_2;\n}"
    )
    module = parser.parse(text)
    (call,) = rewrite.instructions(module.entries["k"].body)
    assert call.opcode == "call"
    assert printer.printed(parser.parse(printer.printed(module))) == printer.printed(module)
