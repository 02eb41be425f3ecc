"""launch.py where a host library does not load: it builds the source itself."""

from pathlib import Path

from fusiond.build.exporting import launch
from fusiond.model.keys import plain
from tests.build.exporting import programs


def test_host_sources_are_built_where_no_library_loads(tmp_path: Path, gxx_here: None) -> None:
    (tmp_path / "host.so").write_bytes(b"of another machine")
    cache = tmp_path / "cache"
    cache.mkdir()
    library = launch._host_library(plain(programs.host), tmp_path, cache)
    assert library.twice is not None
    assert (cache / "host.so").is_file()
