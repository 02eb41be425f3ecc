"""Python functions traced into graphs, and graphs written as files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.model.inputs import documents
from fusiond.requests import jobs
from fusiond_mincut import plugin, request, strategy
from fusiond_mincut.analysis import legality, partition
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.frontend import borders, parser, printer, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import TypeProblem
from fusiond_mincut.frontend.graph import Pipeline
from fusiond_mincut.trace import C, mask, stage, traced

from . import oracle
from .generated import pipeline as generated

GAUSS = mask("gauss", [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
ACROSS = mask("across", [[-1, 0, 1]] * 3)
DOWN = mask("down", [[-1, -1, -1], [None, None, None], [1, 1, 1]])


@stage(mask=(3, 3), border="clamp")
def across(image: Any) -> Any:
    return C.sum(ACROSS, image) / 6


@stage(mask=(3, 3), border="clamp")
def down(image: Any) -> Any:
    return C.sum(DOWN, image) / 6


@stage()
def product(one: Any, other: Any) -> Any:
    return one * other


@stage(mask=(3, 3), border="clamp")
def smooth(image: Any) -> Any:
    return C.sum(GAUSS, image) / 16


@stage()
def response(gx: Any, gy: Any, gxy: Any) -> Any:
    determinant = C.let("determinant", gx * gy - gxy * gxy)
    trace = C.let("trace", gx + gy)
    return determinant - 0.04 * trace * trace > 500000.0


def harris(src: Any) -> Any:
    dx, dy = across(src, name="dx"), down(src, name="dy")
    sx, sy, sxy = product(dx, dx, name="sx"), product(dy, dy, name="sy"), product(dx, dy, name="sxy")
    return response(smooth(sx, name="gx"), smooth(sy, name="gy"), smooth(sxy, name="gxy"), name="hc")


def read(text: str) -> Pipeline:
    return parser.read(documents.parse(text, "written.yaml"))


def test_a_traced_function_is_the_pipeline_of_the_file() -> None:
    made = traced(harris, width=2048, height=2048)
    path = plugin.PIPELINES / "harris.yaml"
    assert made == parser.read(documents.parse(path.read_text(), str(path)))
    assert str(partition.planned(made, PAPER).partition) == "dx|dy|sx+gx|sxy+gxy|sy+gy|hc"


@pytest.mark.parametrize("path", sorted(plugin.PIPELINES.glob("*.yaml")), ids=lambda each: each.stem)
def test_what_is_written_is_read_again(path: Any) -> None:
    made = parser.read(documents.parse(path.read_text(), str(path)))
    assert read(printer.text(made)) == made


@pytest.mark.parametrize("seed", range(8))
def test_random_pipelines_are_written_and_read_again(seed: int) -> None:
    made = generated(seed, 15)
    assert read(printer.text(made)) == made


@stage(mask=(3, 1), border={"image": "mirror", "other": ("constant", 2.5)}, dtype="float32", channels=1)
def mixed(image: Any, other: Any) -> Any:
    chosen = C.select(C.both(image[1, 0] > 3, C.either(other[-1, 0] <= 0.5, image != 7)), -image % 5, other / 2)
    return chosen + C.clamp(C.float(image << 1 | 1), 0.0, 9.0) + 3 / (1.5 + other) - (~image & 6 ^ 2) * (image >> 1)


@stage(reduce="max", dtype="int32", channels=1)
def greatest(image: Any) -> Any:
    return image.r + image.b


@stage(channels=3)
def shown(image: Any, level: Any) -> Any:
    return image.b, image.g + level, C.uchar(image.r * 2)


def colours(picture: Any, second: Any) -> Any:
    gray = mixed(first(picture), scaled(second))
    return gray, shown(picture, greatest(picture))


@stage(channels=1, dtype="int32")
def first(image: Any) -> Any:
    return image.r + image.g


@stage(channels=1, dtype="float32")
def scaled(image: Any) -> Any:
    return 0.25 * image.g


def test_everything_that_a_stage_can_say() -> None:
    made = traced(colours, width=9, height=7, dtype="uint8", channels=3)
    assert [(each.name, each.pattern, each.channels, each.dtype) for each in made.kernels] == [
        ("first", "point", 1, "int32"), ("greatest", "global", 1, "int32"), ("scaled", "point", 1, "float32"),
        ("mixed", "local", 1, "float32"), ("shown", "point", 3, "uint8"),
    ]  # fmt: skip
    again = read(printer.text(made))
    assert (again.width, again.inputs, again.outputs) == (made.width, made.inputs, made.outputs)
    draw = np.random.default_rng(3)
    images = {name: draw.integers(0, 256, (7, 9, 3)).astype(np.uint8) for name in ("picture", "second")}
    one, two = oracle.run(made, images), oracle.run(again, images)
    for name in made.outputs:
        assert np.array_equal(one[name], two[name])
    picture = images["picture"].astype(np.int32)
    level = (picture[:, :, 0] + picture[:, :, 2]).max()
    assert np.array_equal(one["shown"][:, :, 1], (picture[:, :, 1] + level).astype(np.uint8))
    assert np.array_equal(one["shown"][:, :, 0], picture[:, :, 2])


@stage()
def branching(image: Any) -> Any:
    return image if image > 3 else 0


@stage()
def sideways(image: Any) -> Any:
    return image[1, 0]


@stage()
def indexed_sum(image: Any) -> Any:
    return (image + 1)[0, 1]


@stage(channels=1)
def unsaid(image: Any) -> Any:
    return image + 1


def test_a_gray_stage_says_which_channel_it_reads() -> None:
    with pytest.raises(TypeProblem, match="unsaid computes one channel, and reads an image of three"):
        traced(lambda src: unsaid(src), width=8, height=8, channels=3)


@stage(border="edge")
def bordered(image: Any) -> Any:
    return image


@stage()
def halved(image: Any) -> Any:
    return image[0.5, 0]


@stage()
def named_twice(image: Any) -> Any:
    once = C.let("t", image * 2)
    return once + C.let("t", once * 3)


@stage(mask=(3, 3))
def borderless(image: Any) -> Any:
    return image[1, 0]


@stage(mask=(3, 3), border={"img": "clamp"})
def misnamed_border(image: Any) -> Any:
    return image[1, 0]


@stage(mask=(3, 3), border={"one": "clamp", "other": "mirror"})
def two_borders(one: Any, other: Any) -> Any:
    return one[1, 0] + other[-1, 0]


def python_only(image: Any, does: Any) -> Any:
    return stage()(lambda x: does(x))(image, name="x")


@stage(channels=5)
def five_channels(image: Any) -> Any:
    return image


@stage(reduce="mean")
def averaged(image: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda src: branching(src), "a pixel is not known while tracing"),
        (lambda src: sideways(src), "sideways: src[1, 0] lies outside its own pixel"),
        (lambda src: indexed_sum(src), "only an image can be read at an offset"),
        (lambda src: python_only(src, lambda x: x**2), "C has no **; write C.pow("),
        (lambda src: python_only(src, lambda x: x // 3), "C has no //; / of integers truncates"),
        (lambda src: python_only(src, lambda x: divmod(x, 2)), "C has no divmod"),
        (lambda src: python_only(src, lambda x: x @ x), "C has no @"),
        (lambda src: python_only(src, float), "a cast is C.float(x)"),
        (lambda src: python_only(src, int), "a cast is C.int(x)"),
        (lambda src: python_only(src, round), "write C.rint(x)"),
        (lambda src: python_only(src, lambda x: [0, 1][x]), "Python cannot use it as a number"),
        (lambda src: bordered(src), "border is 'edge'"),
        (lambda src: halved(src), "constant whole offsets"),
        (lambda src: (product(src, src, name="x"), product(src, src, name="x")), "two writers of 'x'"),
        (lambda src: product(src, src, name="min"), "'min' means something else in bodies"),
        (lambda src: src, "is not a kernel, so it cannot be an output"),
        (lambda src: named_twice(src), "C.let('t', ...): 't' is the name of something else here"),
        (lambda src: borderless(src), "borderless reads outside 'src' at its edges, and has no border for it"),
        (lambda src: misnamed_border(src), "a border for 'img', which is not a parameter of misnamed_border"),
        (lambda src: two_borders(src, src), "two_borders reads 'src' with two borders; give one"),
        (lambda src: five_channels(src), "5 channels; an image has 1 to 4"),
        (lambda src: averaged(src), "reduce is 'mean'; it can be sum, min, max"),
        (lambda src: product(src, name="x"), "x is called with 1 image(s): missing a required argument"),
        (lambda src: product(src, None, name="x"), "x is called with something that is not an image"),  # type: ignore[arg-type]
        (lambda width: product(width, width), "'width' means something else in bodies"),
        (lambda src: None, "a pipeline returns one image, or a tuple of images"),
    ],
)
def test_what_cannot_be_traced_is_one_line(function: Any, said: str) -> None:
    with pytest.raises(TypeProblem, match=re.escape(said)) as found:
        traced(function, width=8, height=8)
    assert len(str(found.value).splitlines()) == 1


def test_a_stage_by_itself_is_no_pipeline() -> None:
    with pytest.raises(TypeProblem, match="call it in a function that `traced` calls"):
        product(None, None)  # type: ignore[arg-type]


def test_a_lambda_gives_a_pipeline_that_a_file_can_hold() -> None:
    made = traced(lambda src: product(src, src, name="x"), width=8, height=8)
    assert made.name == "traced"
    assert parser.read(documents.parse(printer.text(made), "made.yaml")) == made


# --- docs/mincut.md -------------------------------------------------------------------------------------


TEXT = (Path(__file__).parents[3] / "docs" / "mincut.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def cells(heading: str) -> list[str]:
    """The first cells of the table below a heading row (or the beginning of one)."""
    rows = TEXT.partition(heading)[2].partition("\n|")[2].split("\n\n")[0].splitlines()[1:]
    return [row.split("|")[1].strip().strip("`") for row in rows]


def test_the_examples_are_a_job_and_a_pipeline() -> None:
    job, pipeline, sizes = blocks("yaml")
    (found,) = jobs.read("job.yaml", job)
    jobs.check_keys(found, strategy.Mincut.job_keys)
    made = parser.read(documents.parse(pipeline, "edges.yaml"))
    assert [each.name for each in made.kernels] == ["blurred", "brightest", "marked"]
    made = parser.read(documents.parse(sizes, "blend.yaml"))
    assert [made.sides(name) for name in ("mask", "half", "out")] == [(480, 270), (960, 540), (1920, 1080)]


def test_the_python_example_makes_the_file_it_says() -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(code, "docs/mincut.md", "exec"), names)
    made = parser.read(documents.parse(names["text"], "sharpened.yaml"))
    assert made == traced(names["sharpened"], width=1920, height=1080)


def test_every_key_rule_border_and_parameter_is_told() -> None:
    assert cells("| key | meaning | default |") == ["pipeline", "sizes", "model", "blocks", "accuracy", "block"]
    assert {*cells("| key | meaning | default |")} - {"sizes"} == set(strategy.Mincut.job_keys)
    assert [each.split("`")[0] for each in cells("| `border` | outside `abcd`")] == [
        "clamp", "mirror", "reflect", "repeat", "{constant: v}",
    ]  # fmt: skip
    assert set(borders.MODES) == {"clamp", "mirror", "reflect", "repeat", "constant"}
    source = Path(legality.__file__).read_text(encoding="utf-8")
    rules = set(re.findall(r'rule="(\w+)"', source)) - {"convex"}
    assert set(cells("| rule | a block is refused when |")) == rules
    for function in tree.FUNCTIONS:
        assert re.search(rf"\b{function}\b", TEXT), function
    for name in syntax.TYPES:
        assert f"{name}(x)" in TEXT
    assert cells("| parameter of a block | values |") == ["shape", "threads", "pixels", "local", "strip"]
    assert f"`{block_configs.STRIPS[0]}`" in TEXT
    for each in block_configs.THREADS:
        assert f"`{each}`" in TEXT
    assert f"measures no block, only whole partitions | `{request.MOST_BLOCKS}` |" in TEXT


def test_the_borders_are_those_of_numpy() -> None:
    import numpy as np

    from . import oracle

    rows = TEXT.partition("| `border` | outside `abcd`")[2].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        mode, shown, pad = (each.strip().strip("`") for each in row.split("|")[1:4])
        name = "constant" if "constant" in mode else mode
        more = {"constant_values": ord("v")} if name == "constant" else {}
        letters = np.frombuffer(b"abcd", np.uint8)
        padded = bytes(np.pad(letters, 3, mode=pad, **more)).decode()
        assert shown.replace(" ", "") == padded
        if name != "constant":
            at = [oracle.indices(offset, 4, name)[0] for offset in (-3, 3)]
            assert bytes(letters[at[0]][:3]).decode() + "abcd" + bytes(letters[at[1]][1:]).decode() == padded
