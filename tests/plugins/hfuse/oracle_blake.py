"""BLAKE-256 with 14 rounds, from the SHA-3 submission (Aumasson, Henzen, Meier, Phan: SHA-3 proposal BLAKE, 1.3).

Constants are worked out from their definitions where they have one: the digits of pi and the roots of primes.
"""

import math

import numpy as np

SIGMA = (
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
)  # fmt: skip


def _pi(words):
    """The first 32-bit words of pi's fraction, by Machin's formula."""
    bits = 32 * words + 64

    def arctangent(inverse):
        term, total, sign, odd = (1 << bits) // inverse, 0, 1, 1
        while term:
            total += sign * (term // odd)
            term, sign, odd = term // inverse**2, -sign, odd + 2
        return total

    fraction = (4 * (4 * arctangent(5) - arctangent(239))) % (1 << bits)
    return [(fraction >> (bits - 32 * (i + 1))) & 0xFFFFFFFF for i in range(words)]


CONSTANTS = np.array(_pi(16), np.uint32)
INITIAL = np.array([math.isqrt(prime << 64) & 0xFFFFFFFF for prime in (2, 3, 5, 7, 11, 13, 17, 19)], np.uint32)


def _rotated(words, right):
    return (words >> np.uint32(right)) | (words << np.uint32(32 - right))


def _compressed(state, block, bits):
    """One block into the state; both are arrays of words x messages."""
    counter = np.array([bits & 0xFFFFFFFF, bits & 0xFFFFFFFF, bits >> 32, bits >> 32], np.uint32)
    lower = np.concatenate([CONSTANTS[:4], CONSTANTS[4:8] ^ counter])
    v = np.concatenate([state, np.broadcast_to(lower[:, None], state.shape)])

    def mix(row, i, a, b, c, d):
        j, k = int(SIGMA[row][2 * i], 16), int(SIGMA[row][2 * i + 1], 16)
        v[a] += v[b] + (block[j] ^ CONSTANTS[k])
        v[d] = _rotated(v[d] ^ v[a], 16)
        v[c] += v[d]
        v[b] = _rotated(v[b] ^ v[c], 12)
        v[a] += v[b] + (block[k] ^ CONSTANTS[j])
        v[d] = _rotated(v[d] ^ v[a], 8)
        v[c] += v[d]
        v[b] = _rotated(v[b] ^ v[c], 7)

    for number in range(14):
        row = number % 10
        mix(row, 0, 0, 4, 8, 12)
        mix(row, 1, 1, 5, 9, 13)
        mix(row, 2, 2, 6, 10, 14)
        mix(row, 3, 3, 7, 11, 15)
        mix(row, 4, 0, 5, 10, 15)
        mix(row, 5, 1, 6, 11, 12)
        mix(row, 6, 2, 7, 8, 13)
        mix(row, 7, 3, 4, 9, 14)
    return state ^ v[:8] ^ v[8:]


def blake256(messages):
    """Digests (n x 32 bytes) of n messages of one length (n x length bytes)."""
    count, length = messages.shape
    padding = bytearray(-(length + 9) % 64 + 9)
    padding[0] = 0x80
    padding[-9] |= 0x01
    padding[-8:] = (8 * length).to_bytes(8, "big")
    padded = np.concatenate([messages, np.tile(np.frombuffer(padding, np.uint8), (count, 1))], axis=1)
    words = np.ascontiguousarray(padded).view(">u4").astype(np.uint32).T
    state = np.tile(INITIAL[:, None], (1, count))
    for block in range(len(words) // 16):
        # Bits of the message up to here; a block of padding alone counts as none.
        end = min(64 * (block + 1), length)
        state = _compressed(state, words[16 * block : 16 * block + 16], 8 * end if end > 64 * block else 0)
    return np.ascontiguousarray(state.T.astype(">u4")).view(np.uint8)
