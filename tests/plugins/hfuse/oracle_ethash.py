"""Keccak (FIPS 202, with either padding) and the Ethash specification's hashimoto, over many messages at once."""

import numpy as np

KECCAK, SHA3 = 0x01, 0x06  #: The first byte of padding: of Keccak's submission, which Ethash keeps, and of the standard


def _round_constants():
    """FIPS 202, algorithms 5 and 6: one bit of a shift register at each place 2^j - 1."""
    bits, register = [], 1
    for _ in range(7 * 24):
        bits.append(register & 1)
        register <<= 1
        if register & 0x100:
            register ^= 0x171
    return [sum(bits[7 * number + j] << (2**j - 1) for j in range(7)) for number in range(24)]


def _rotations():
    """FIPS 202, algorithm 2."""
    turns = {(0, 0): 0}
    x, y = 1, 0
    for t in range(24):
        turns[x, y] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return turns


CONSTANTS = np.array(_round_constants(), np.uint64)
ROTATIONS = _rotations()


def _rotated(lane, left):
    return lane if left == 0 else (lane << np.uint64(left)) | (lane >> np.uint64(64 - left))


def _permuted(lanes):
    """Keccak-f[1600] of lanes[x, y], each an array over messages."""
    for constant in CONSTANTS:
        parity = [np.bitwise_xor.reduce([lanes[x, y] for y in range(5)]) for x in range(5)]
        lanes = {(x, y): lanes[x, y] ^ parity[x - 1] ^ _rotated(parity[(x + 1) % 5], 1) for x, y in lanes}
        moved = {(y, (2 * x + 3 * y) % 5): _rotated(lanes[x, y], ROTATIONS[x, y]) for x, y in lanes}
        lanes = {(x, y): moved[x, y] ^ (~moved[(x + 1) % 5, y] & moved[(x + 2) % 5, y]) for x, y in moved}
        lanes[0, 0] = lanes[0, 0] ^ constant
    return lanes


def keccak(messages, bits, padding=KECCAK):
    """Digests (n x bits / 8) of n messages of one length (n x length bytes)."""
    count, length = messages.shape
    rate = 200 - bits // 4
    tail = bytearray(rate - length % rate)
    tail[0] |= padding
    tail[-1] |= 0x80
    padded = np.concatenate([messages, np.tile(np.frombuffer(tail, np.uint8), (count, 1))], axis=1)
    words = np.ascontiguousarray(padded).view("<u8").T
    lanes = {(i % 5, i // 5): np.zeros(count, np.uint64) for i in range(25)}
    for block in range(len(words) * 8 // rate):
        for i in range(rate // 8):
            lanes[i % 5, i // 5] = lanes[i % 5, i // 5] ^ words[block * rate // 8 + i]
        lanes = _permuted(lanes)
    digest = np.stack([lanes[i % 5, i // 5] for i in range(bits // 64)], axis=1)
    return np.ascontiguousarray(digest.astype("<u8")).view(np.uint8)


def _words(digests):
    return np.ascontiguousarray(digests).view("<u4").astype(np.uint32)


def _bytes(words):
    return np.ascontiguousarray(words.astype("<u4")).view(np.uint8)


def _fnv(a, b):
    return a * np.uint32(0x01000193) ^ b


def hashimoto(header, nonces, dag):
    """Mix digests and results (n x 32 bytes each) of a header's hash (32 bytes) with n nonces over a DAG of pages x 32
    words."""
    count = len(nonces)
    messages = np.concatenate(
        [np.tile(np.frombuffer(header, np.uint8), (count, 1)), nonces.astype("<u8")[:, None].view(np.uint8)], axis=1
    )
    seed = _words(keccak(messages, 512))
    mix = np.tile(seed, (1, 2))
    for access in range(64):
        page = _fnv(np.uint32(access) ^ seed[:, 0], mix[:, access % 32]) % np.uint32(len(dag))
        mix = _fnv(mix, dag[page])
    parts = mix.reshape(count, 8, 4)
    compressed = _fnv(_fnv(_fnv(parts[..., 0], parts[..., 1]), parts[..., 2]), parts[..., 3])
    mix_digest = _bytes(compressed)
    return mix_digest, keccak(np.concatenate([_bytes(seed), mix_digest], axis=1), 256)


def make_dag(seed, cache_rows, pages):
    """The specification's cache and data set, at any size."""
    rows = [_words(keccak(np.frombuffer(seed, np.uint8)[None], 512))]
    for _ in range(cache_rows - 1):
        rows.append(_words(keccak(_bytes(rows[-1]), 512)))
    for _ in range(3):
        for i in range(cache_rows):
            other = rows[int(rows[i][0, 0]) % cache_rows]
            rows[i] = _words(keccak(_bytes(rows[i - 1] ^ other), 512))
    cache = np.concatenate(rows)
    items = np.arange(2 * pages, dtype=np.uint32)
    mix = cache[items % cache_rows]
    mix[:, 0] ^= items
    mix = _words(keccak(_bytes(mix), 512))
    for parent in range(256):
        mix = _fnv(mix, cache[_fnv(items ^ np.uint32(parent), mix[:, parent % 16]) % np.uint32(cache_rows)])
    return _words(keccak(_bytes(mix), 512)).reshape(pages, 32)
