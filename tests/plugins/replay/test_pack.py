"""Recorded spaces: what is read is what was written, and what is wrong in a file is one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.strategy import recorded_space as writer
from fusiond_replay import pack, t4
from fusiond_replay.pack import Row

HEADER: dict[str, Any] = {"replay": 1, "name": "small", "parameters": {"x": [1, 2, 4], "y": ["a", None]}, "unit": "ms"}
ROWS = [[[0, 0], [9.0, 9.0, 9.0, 2.0, 3.0], 1.5], [[1, 1], "compile", 0.5], [[2, None], [4.0], 0.1]]


def written(path: Path, header: dict[str, Any] = HEADER, rows: list[Any] = ROWS, *, plain: bool = False) -> Path:
    data = "\n".join(json.dumps(each) for each in (header, *rows)).encode()
    path.write_bytes(data if plain else gzip.compress(data))
    return path


@pytest.mark.parametrize("plain", [False, True])
def test_a_pack_is_read(tmp_path: Path, plain: bool) -> None:
    found = t4.read(written(tmp_path / "small.jsonl.gz", plain=plain))
    assert (found.name, found.device, found.warmups) == ("small", "", 3)
    assert [found.values(each) for each in found.rows] == [{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 4}]
    assert [found.time_us(each) for each in found.rows] == [2500.0, None, 4000.0]
    assert found.time_us(found.rows[0], most=1) == 2000.0
    assert found.rows[1].failure == "compile"
    assert list(found.space.points()) == [Config.of(found.values(each)) for each in found.rows]


@given(
    st.dictionaries(
        st.tuples(st.integers(-1, 2), st.integers(-1, 1)),
        st.one_of(st.sampled_from(pack.FAILURES), st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=5)),
        min_size=1,
    ).filter(lambda each: any(isinstance(became, list) for became in each.values()))
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, became: dict[tuple[int, int], Any]) -> None:
    rows = tuple(
        Row(levels=levels, failure=each)
        if isinstance(each, str)
        else Row(levels=levels, samples_us=tuple(each), secs=1.0)
        for levels, each in became.items()
    )
    path = tmp_path_factory.mktemp("packs") / "one.jsonl.gz"
    writer.write(path, "one", HEADER["parameters"], rows, warmups=0)
    found = pack.read(path)
    assert [(each.levels, each.failure) for each in found.rows] == [(each.levels, each.failure) for each in rows]
    for mine, other in zip(found.rows, rows, strict=True):
        assert mine.samples_us == pytest.approx(other.samples_us, rel=1e-5)
    before = path.read_bytes()
    writer.write(path, "one", HEADER["parameters"], rows, warmups=0)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ({"name": "no"}, ROWS, ":1: expected the header of a recorded space"),
        ({**HEADER, "replay": 2}, ROWS, ":1: is of version 2; this fusiond reads version 1"),
        ({**HEADER, "unit": "h"}, ROWS, ":1: unit is 'h'; it can be us, ms, s"),
        ({**HEADER, "warmups": -1}, ROWS, "warmups is -1"),
        ({**HEADER, "problem": "big"}, ROWS, "problem must be a list of whole numbers"),
        ({**HEADER, "parameters": []}, ROWS, "'parameters' must be an object"),
        ({**HEADER, "parameters": {"x": [], "y": [1]}}, ROWS, "parameters.x: expected a list"),
        ({**HEADER, "parameters": {"x": [[1]], "y": [1]}}, ROWS, "parameters.x: expected a list"),
        (HEADER, [[[0], [1.0], 0]], ":2: has 1 positions; there are 2 parameters"),
        (HEADER, [[[3, 0], [1.0], 0]], ":2: position 3 of x: expected 0 to 2, or null"),
        (HEADER, [[[True, 0], [1.0], 0]], ":2: position True of x"),
        (HEADER, [[[0, 0], "exploded", 0]], "failed by 'exploded'; it can be compile, runtime"),
        (HEADER, [[[0, 0], [], 0]], "expected samples: a list of positive numbers"),
        (HEADER, [[[0, 0], [0.0], 0]], "expected samples: a list of positive numbers"),
        (HEADER, [[[0, 0], [1.0], -1]], "seconds are -1"),
        (HEADER, [{"x": 1}], "expected [positions, samples or failure, seconds]"),
        (HEADER, [ROWS[0], ROWS[0]], ":3: the same config stands in an earlier line"),
        (HEADER, [ROWS[1]], "no config of it was measured"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, header: dict[str, Any], rows: list[Any], said: str) -> None:
    with pytest.raises(RequestError) as problem:
        t4.read(written(tmp_path / "p.jsonl.gz", header, rows))
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8bzzzz", gzip.compress(b"{}", mtime=0)[:-4], b"\xff\xfe", b"{} {}\n{", b"[1]"]
)
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(RequestError, match=r"^\S*bad"):
        t4.read(tmp_path / "bad")
    with pytest.raises(RequestError, match="cannot be read"):
        t4.read(tmp_path / "absent")


T4 = {
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "configuration": {"x": 32, "y": "b"},
            "times": {"compilation": 500, "runtimes": [9, 9, 9, 2, 4]},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 3.0, "unit": "ms"}],
        },
        {"configuration": {"x": 16, "y": "a"}, "times": {"compilation_time": 100}, "invalidity": "compile"},
        {
            "configuration": {"x": 16, "y": "b"}, "times": {}, "invalidity": "correct",
            "measurements": [{"name": "time", "value": 5.0, "unit": ""}],
        },
    ],
}  # fmt: skip
CACHE = {
    "device_name": "Fast 9", "kernel_name": "k", "tune_params_keys": ["x", "y"],
    "tune_params": {"x": [64, 16, 32], "y": ["b", "a"]},
    "cache": {
        "32,b": {"x": 32, "y": "b", "time": 3.0, "times": [9, 9, 9, 2, 4], "compile_time": 500},
        "16,a": {"x": 16, "y": "a", "time": "CompilationFailedConfig", "compile_time": 100},
        "16,b": {"x": 16, "y": "b", "time": 5.0},
    },
}  # fmt: skip


@pytest.mark.parametrize(("document", "values"), [(T4, (16, 32)), (CACHE, (16, 32))])
def test_the_field_s_formats_give_the_same(tmp_path: Path, document: Any, values: tuple[int, ...]) -> None:
    path = tmp_path / "space.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    found = t4.read(path)
    assert found.name == "space"
    assert found.parameters[0].values == values
    assert [found.values(each) for each in found.rows] == [
        {"x": 32, "y": "b"}, {"x": 16, "y": "a"}, {"x": 16, "y": "b"},
    ]  # fmt: skip
    assert [found.time_us(each) for each in found.rows] == [3000.0, None, 5000.0]
    assert [each.failure for each in found.rows] == ["", "compile", ""]
    assert [each.secs for each in found.rows] == [0.5, 0.1, 0.0]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([], "holds no results"),
        ([{"x": 1}], "results[0]: expected an object with 'configuration'"),
        ([{"configuration": {"x": 1}, "invalidity": "odd"}], "invalidity is 'odd'; it can be correct, compile"),
        ([{"configuration": {"x": 1}}], "has neither runtimes nor a measurement called 'time'"),
        ([{"configuration": {"x": [1]}, "times": {"runtimes": [1]}}], "x: values must be numbers"),
        ([{"configuration": {"x": 1}, "times": {"runtimes": [-1]}}], "times must be positive"),
        ([{"configuration": {"x": 1}, "invalidity": "runtime"}], "no config of it was measured"),
    ],
)
def test_what_is_wrong_in_t4_is_one_line(tmp_path: Path, results: list[Any], said: str) -> None:
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"results": results}))
    with pytest.raises(RequestError) as problem:
        t4.read(path)
    assert said in str(problem.value)
