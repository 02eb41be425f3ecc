"""A generator of candidates for judge_loop.py that knows nothing: it doubles or halves a size of a block, a constant of
the source, or how far a loop is unrolled. It begins with the best candidate so far that was right.

    python examples/judge_loop.py kernel.yaml --candidates "python examples/mutate_block.py" --budget 20
"""

from __future__ import annotations

import json
import random
import re
import sys

import yaml

CONSTANT = re.compile(r"(?:#define\s+\w+|constexpr\s+\w+\s+\w+\s*=)\s*(\d+)|#pragma\s+unroll[ \t]*(\d+)")
BLOCK = re.compile(r"^//: block: .*\n", re.MULTILINE)


def changed(number: int, chance: random.Random) -> int:
    return chance.choice([number * 2, max(1, number // 2)])


def mutated(source: str, reference: str, chance: random.Random) -> str:
    """The source with one number changed; a constant that is also a side of the block is changed there, too."""
    own = BLOCK.search(source)
    block = yaml.safe_load(own[0].removeprefix("//: ") if own else reference)["block"]
    places = [each for each in CONSTANT.finditer(source) if int(each[each.lastindex or 0]) > 0]
    at = chance.randrange(len(places) + len(block["shape"]))
    if at < len(places):
        place = places[at]
        begin, end = place.span(place.lastindex or 0)
        old = int(source[begin:end])
        new = changed(old, chance)
        source = source[:begin] + str(new) + source[end:]
        sides = [new if each == old and place.lastindex == 1 else each for each in block["shape"]]
    else:
        sides = list(block["shape"])
        sides[at - len(places)] = changed(sides[at - len(places)], chance)
    return f"//: block: {json.dumps({**block, 'shape': sides})}\n" + BLOCK.sub("", source)


def main() -> None:
    asked = json.load(sys.stdin)
    right = [each for each in asked["verdicts"] if each["right"]]
    best = max(right, key=lambda each: each["speedup"] or 0.0, default=asked)
    tried = {each["source"] for each in asked["verdicts"]}
    chance = random.Random(json.dumps(sorted(tried)))  # the same question has the same answer
    for attempt in range(100):
        candidate = best["source"]
        for _ in range(1 + attempt // 10):  # further away, where all that is near was tried
            candidate = mutated(candidate, asked["reference"], chance)
        if candidate not in tried:
            break
    sys.stdout.write(candidate)


if __name__ == "__main__":
    main()
