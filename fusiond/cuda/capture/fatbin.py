"""The PTX in a module's image: a fat binary (nvcc's container of images for several architectures), or PTX itself.

container = u32 0xBA55ED50, u16 version, u16 bytes of this header, u64 bytes of the entries, entries
entry     = u16 kind (1: PTX, 2: cubin), u16, u32 bytes of this header, u64 bytes of the payload, u32 of it compressed,
            ..., u32 architecture at 28, u64 flags at 40, u64 bytes uncompressed at 56; then the payload
"""

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.model.errors import RequestError

MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000
_MOST_BYTES = 1 << 30
ARCH = 90  #: What interprets PTX, and what documents are written for, is an sm_90


@dataclass(frozen=True, slots=True)
class FatEntry:
    """One image."""

    kind: int
    arch: int
    flags: int
    payload: bytes  #: As it is stored
    size_bytes: int  #: Uncompressed; 0: it is not compressed

    def data(self) -> bytes:
        """RequestError where what decompresses it is not installed, or it is damaged."""
        try:
            if self.flags & _ZSTD:
                import zstandard

                with _damaged_by(zstandard.ZstdError):
                    return zstandard.ZstdDecompressor().decompress(self.payload, max_output_size=_MOST_BYTES)
            if self.flags & _LZ4:
                import lz4.block

                with _damaged_by(lz4.block.LZ4BlockError):
                    size_bytes = min(self.size_bytes, _MOST_BYTES)
                    return bytes(lz4.block.decompress(self.payload, uncompressed_size=size_bytes))
        except ImportError as problem:
            raise RequestError(
                f"the program's PTX is compressed, and the package {str(problem.name).partition('.')[0]} is not here:"
                " pip install 'fusiond[capture]', or build with nvcc --no-compress"
            ) from None
        return self.payload


def ptx(image: bytes) -> tuple[str, ...]:
    """Its PTX texts: those of the highest architecture that is no newer than sm_90 first, newer ones last. A cubin has
    none. RequestError where they cannot be decompressed."""
    if image[:4] == struct.pack("<I", MAGIC):
        found = sorted((each for each in entries(image) if each.kind == _PTX), key=_preference)
        return tuple(_text(each.data()) for each in found)
    text = image.rstrip(b"\0")
    return (_text(text),) if b".version" in text and not text.startswith(b"\x7fELF") else ()


def of_kernel(image: bytes, name: str) -> str | None:
    """The text that has a kernel of this (mangled) name; None where none has."""
    entry = re.compile(rf"\.entry\s+{re.escape(name)}\b(?!\$)")
    return next((each for each in ptx(image) if entry.search(each)), None)


def cubins(image: bytes) -> tuple[bytes, ...]:
    """Its cubins, in the order of `ptx`."""
    if image[:4] == struct.pack("<I", MAGIC):
        return tuple(each.data() for each in sorted(entries(image), key=_preference) if each.kind == _CUBIN)
    return (image,) if image.startswith(b"\x7fELF") else ()


def entries(image: bytes) -> Iterator[FatEntry]:
    """Of a fat binary, as far as it is whole."""
    _, _, header_bytes, body_bytes = struct.unpack_from("<IHHQ", image)
    at, end = header_bytes, min(header_bytes + body_bytes, len(image))
    while at + 64 <= end:
        kind, _, head, payload_bytes, compressed, _, _, _, arch = struct.unpack_from("<HHIQIIHHI", image, at)
        flags, _, size_bytes = struct.unpack_from("<QQQ", image, at + 40)
        used = compressed if flags & (_LZ4 | _ZSTD) else payload_bytes
        yield FatEntry(kind, arch, flags, image[at + head : at + head + used], size_bytes)
        at += head + payload_bytes


def registers(cubin: bytes) -> dict[str, int]:
    """Kernel -> registers of a thread, from a cubin's section `.nv.info`: records of u8 form, u8 attribute, u16 bytes,
    of which the attribute 0x2f has u32 symbol, u32 registers."""
    (at,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQII", cubin, at + size * k) for k in range(count)]
    sections = {_name(cubin, heads[names][4] + head[0]): head for head in heads}
    if not {".nv.info", ".symtab", ".strtab"} <= sections.keys():
        return {}
    (info, end), symbols, strings = sections[".nv.info"][4:6], sections[".symtab"][4], sections[".strtab"][4]
    found, end = {}, info + end
    while info + 4 <= end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, info)
        if (form, attribute, length) == (4, 0x2F, 8):
            symbol, registers = struct.unpack_from("<II", cubin, info + 4)
            found[_name(cubin, strings + struct.unpack_from("<I", cubin, symbols + 24 * symbol)[0])] = registers
        info += 4 + (length if form == 4 else 0)  # of the other forms the length is the value
    return found


def _name(cubin: bytes, begin: int) -> str:
    return cubin[begin : cubin.index(b"\0", begin)].decode("utf-8", "replace")


def _preference(entry: FatEntry) -> tuple[bool, int]:
    newer = entry.arch > ARCH
    return newer, entry.arch if newer else -entry.arch


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


@contextlib.contextmanager
def _damaged_by(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as problem:
        raise RequestError(f"a fat binary is damaged: {problem}") from None
