"""Reads a region of a graph's file: a document for another strategy that describes several kernels.

- pipeline: ./sharpen.yaml                    # the kind of the document, and where it is
  keys: {block: [smooth, sharp]}              # other keys of the job that is asked
  sizes: {width: width, height: height}       # its sizes, over those of the graph
  reads: {src: photo}                         # its name: the vector
  writes: {sharp: sharpened}
"""

from collections.abc import Callable, Mapping
from pathlib import PurePath

from fusiond.model.errors import UnknownName
from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.nouns import frozen
from fusiond_transfer.frontend.graph import RegionDocument, Vector
from fusiond_transfer.frontend.sub_vectors import whole_name

KEYS = ("keys", "sizes", "reads", "writes")


def read(
    node: Node, beside: Callable[[Node], tuple[str, str]], sizes: Mapping[str, int], vectors: Mapping[str, Vector]
) -> RegionDocument:
    """A region. `beside`: (path, text) of a file that is named. RequestError with file, line and key."""
    keys = node.mapping(required=("reads", "writes"))
    kinds = [name for name in keys if name not in KEYS]
    if len(kinds) != 1:
        raise node.fail("needs one document, such as `pipeline: ./file.yaml`, beside keys, sizes, reads and writes")
    (kind,) = kinds
    path, text = beside(keys[kind])
    given = keys["sizes"].mapping() if "sizes" in keys else {}
    return RegionDocument(
        name=PurePath(path).stem,
        kind=kind,
        path=path,
        text=text,
        keys=frozen({name: each.plain() for name, each in keys["keys"].mapping().items()} if "keys" in keys else {}),
        sizes=frozen({name: values.integer(each, sizes) for name, each in given.items()}),
        reads=_vectors(keys["reads"], vectors),
        writes=_vectors(keys["writes"], vectors),
    )


def _vectors(node: Node, vectors: Mapping[str, Vector]) -> Mapping[str, str]:
    found = {name: each.text() for name, each in node.mapping().items()}
    if not found:
        raise node.fail("names nothing; expected {name in the document: vector}")
    for each in node.mapping().values():
        if whole_name(each.text()) not in vectors:
            raise UnknownName("vector", each.text(), vectors, where=each.where)
    return frozen(found)
