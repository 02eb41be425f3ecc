"""Pipelines as YAML: what is read, and the one line for everything that is wrong."""

import random
import re

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond_mincut.frontend import graph, parser
from fusiond_mincut.frontend.graph import Border, Pipeline

GOOD = """\
pipeline: made
summary: all that a file can say
image: {width: 20, height: 10, dtype: uint8, channels: 3}
inputs: [src, {name: gray, dtype: float32, channels: 1, fill: {uniform: [0, 2]}}]
outputs: [last, total]
parameters: {k: 0.5, n: 3, exact: {value: 0.1, dtype: float64}}
masks: {cross: [[0, 1, null], [1, 2.5, 1], [0, 1, 0]]}
kernels:
  last:
    pattern: point
    reads: [blurred, total]
    let: {half: "blurred / 2", more: "half + n"}
    body: {r: "more", g: "half - total", b: "width * height"}
  total: {pattern: global, reads: [gray], body: "gray * k * exact", reduce: max, dtype: float32, channels: 1}
  blurred:
    pattern: local
    mask: [3, 3]
    border: {src: mirror, gray: {constant: 1.5}}
    reads: [src, gray]
    body: "sum(cross, src) + gray[1, 0]"
"""


def read(text: str, **sizes: int) -> Pipeline:
    return parser.read(documents.parse(text, "made.yaml"), sizes)


def test_what_a_file_says_is_what_is_read() -> None:
    made = read(GOOD)
    assert (made.name, made.width, made.height, made.outputs) == ("made", 20, 10, ("last", "total"))
    assert [each.name for each in made.kernels] == ["blurred", "total", "last"]
    assert [(each.name, each.dtype, each.channels, each.fill.kind) for each in made.inputs] == [
        ("src", "uint8", 3, "integers"), ("gray", "float32", 1, "uniform"),
    ]  # fmt: skip
    blurred = made.kernel("blurred")
    assert blurred.borders == {"src": Border(mode="mirror"), "gray": Border(mode="constant", value=1.5)}
    assert blurred.window("src") == (1, 1, 1, 1)
    assert blurred.window("gray") == (0, 1, 0, 0)
    assert made.images["total"].single
    assert made.kernel("total").reduction == "max"
    assert len(made.kernel("last").bodies) == 3
    assert made.edges == (("blurred", "last"), ("total", "last"))
    assert graph.problems(made) == ()


def test_sizes_of_the_job_replace_those_of_the_file() -> None:
    made = read(GOOD, width=7, height=5)
    assert (made.width, made.height) == (7, 5)
    assert read(GOOD).kernels == made.kernels  # width and height of a body are those of the launch


PLAIN = """\
pipeline: p
image: {width: 16, height: 16, dtype: int32}
inputs: [src]
outputs: [b]
masks: {m: [[1, 2, 1]]}
kernels:
  a: {pattern: point, reads: [src], body: "src + 1"}
  b: {pattern: local, mask: [3, 3], border: clamp, reads: [a], body: "a[1, 1] - a[-1, -1]"}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reads: [src], body: \"src + 1\"", "reads: [b], body: \"b\"", "made.yaml:7: kernels.a: a cycle: a -> b -> a"),
        ("reads: [a], body", "reads: [ab], body", "made.yaml:8: kernels.b.reads[0]: unknown image 'ab'; did you mean"),
        ("a[1, 1] -", "c[1, 1] -", "made.yaml:8: kernels.b.body: column 1: unknown name 'c'"),
        ("mask: [3, 3]", "mask: [4, 3]", "made.yaml:8: kernels.b.mask: a mask of 4 x 3 has no centre; both sides"),
        ("mask: [3, 3]", "mask: [3]", "holds width and height"),
        ("mask: [3, 3], ", "", "made.yaml:8: kernels.b: a local kernel has a mask: [width, height]"),
        ("a[1, 1] -", "a[2, 1] -", "made.yaml:8: kernels.b: a[2, 1] lies outside a mask of 3 x 3"),
        ("src + 1", "src[1, 0]", "made.yaml:7: kernels.a: src[1, 0] lies outside its own pixel"),
        ("  a: {", "  src: {", "two writers of 'src'"),
        ("border: clamp, ", "", "made.yaml:8: kernels.b: b reads outside 'a' at its edges; border: clamp"),
        ("border: clamp", "border: constant", "a constant border has a value: {constant: 0}"),
        ("border: clamp", "border: {constant: 0.5}", "kernels.b.border.constant: is 0.5; a whole number is wanted"),
        ("border: clamp", "border: {x: clamp}", "unknown image 'x'"),
        ("pattern: point", "pattern: pixel", "is 'pixel'; it can be point, local, global"),
        ("pattern: point", "pattern: global", "a global kernel says how it reduces"),
        ("pattern: point,", "pattern: point, reduce: sum,", "a is point; only a global kernel has reduce"),
        ("pattern: point,", "pattern: point, mask: [3, 3],", "a point kernel has no mask"),
        ("pattern: point,", "pattern: point, colour: 1,", "unknown key 'colour'"),
        ("pattern: point,", "pattern: point, dtype: int64,", "is 'int64'; it can be uint8, int16, uint16,"),
        ("pattern: point, ", "", "the key 'pattern' is missing"),
        ("reads: [src], body: \"src + 1\"", "reads: [src], body: \"7\"", "a reads 'src', and its body does not use it"),
        ("body: \"src + 1\"", "body: {r: src, g: src, b: src}", "expected one body: this kernel computes one channel"),
        ("body: \"src + 1\"", "let: {src: \"1\"}, body: \"src + 1\"", "'src' is the name of something else here"),
        ("outputs: [b]", "outputs: [src]", "unknown kernel 'src'"),
        ("outputs: [b]", "outputs: []", "made.yaml:4: outputs: is empty; a pipeline has at least one output"),
        ("outputs: [b]", "outputs: [a]", "made.yaml:8: kernels.b: no kernel reads this image, and it is not an output"),
        ("inputs: [src]", "inputs: []", "is empty; a pipeline reads at least one image"),
        ("inputs: [src]", "inputs: [src, more]", "made.yaml:3: inputs: more: no kernel reads this input"),
        ("inputs: [src]", "inputs: [src, 'a b']", "'a b' is not a name"),
        ("masks: {m: [[1, 2, 1]]}", "masks: {m: [[1, 2]]}", "m is 2 x 1; a mask has odd sides"),
        ("kernels:\n", "parameters: {k: yes}\nkernels:\n", "is True; a number is wanted"),
        ("kernels:\n", "parameters: {k: {value: 3000000000, dtype: int32}}\nkernels:\n", "does not fit int32"),
        ("kernels:\n", "steps: 3\nkernels:\n", "unknown key 'steps'"),
        ("pipeline: p\n", "", "the key 'pipeline' is missing"),
        ("  a: {", "  a__b: {", "belong to the compiler"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_file_line_and_kernel(old: str, new: str, said: str) -> None:
    assert old in PLAIN
    with pytest.raises(RequestError, match=re.escape(said)) as found:
        read(PLAIN.replace(old, new, 1))
    assert str(found.value).startswith("made.yaml")
    assert len(str(found.value).splitlines()) == 1


def test_an_image_that_no_index_reaches() -> None:
    with pytest.raises(RequestError, match=r"made.yaml:3: image: src has 2\^31 elements or more"):
        read(GOOD, width=65536, height=65536)
    assert read(PLAIN, width=65536, height=16384).width == 65536


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(250))
def test_a_damaged_file_is_read_or_refused_in_one_line(seed: int) -> None:
    draw = random.Random(seed)
    text = draw.choice((GOOD, PLAIN))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text))
        match draw.randrange(4):
            case 0:
                text = text[:at] + text[at + draw.randint(1, 6) :]
            case 1:
                text = text[:at] + draw.choice("[]{}:,-+*/ 019abk\n\"'&#") + text[at:]
            case 2:
                other = draw.randrange(len(text))
                text = text[:at] + text[other : other + draw.randint(1, 12)] + text[at:]
            case 3:
                words = [*re.finditer(r"\w+", text)]
                one, two = draw.choice(words), draw.choice(words)
                text = text[: one.start()] + two.group() + text[one.end() :]
    try:
        made = read(text)
    except RequestError as problem:
        assert len(str(problem).splitlines()) == 1
        assert str(problem).startswith("made.yaml")
    else:
        assert graph.problems(made) == ()


def test_an_empty_list_of_kernels() -> None:
    with pytest.raises(RequestError, match="at least one kernel"):
        read(PLAIN.split("kernels:")[0] + "kernels: {}\n")


def test_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match=r"^(a -> c -> b -> a|b -> a -> c -> b|c -> b -> a -> c)$"):
        graph.topological({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})


@pytest.mark.parametrize("name", ["a b\\n", "../up", 'x\\"\\"\\"', "a:b", ".hidden", "n" * 101])
def test_a_pipeline_s_name_can_stand_in_file_names_and_comments(name: str) -> None:
    text = f'pipeline: "{name}"\nimage: {{width: 4, height: 4, dtype: int32}}\ninputs: [s]\noutputs: [a]\n'
    text += "kernels: {a: {pattern: point, reads: [s], body: s}}\n"
    with pytest.raises(RequestError, match=r"^made.yaml:1: pipeline: .* is not a pipeline's name"):
        parser.read(documents.parse(text, "made.yaml"))
