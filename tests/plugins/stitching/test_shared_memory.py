"""Shared-memory planning (section 5.1) against brute force."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis.shared_memory import ALIGNMENT, Dominance, SharedBuffer, layout, relieved, total

# --- layout ---------------------------------------------------------------------------------------------


@st.composite
def buffers(draw, most=9):
    """Buffers with lives; some may be written in place of an earlier one that they touch."""
    found: list[SharedBuffer] = []
    for at in range(draw(st.integers(1, most))):
        first = draw(st.integers(0, 8))
        last = draw(st.integers(first, 9))
        size = 16 * draw(st.integers(1, 6))
        touching = [each.name for each in found if each.last == first and each.first < first]
        place = draw(st.sampled_from([None, *touching]))
        found.append(SharedBuffer(f"b{at}", size, first, last, place))
    return tuple(found)


def clashes(wanted, offsets):
    """Byte by byte and stage by stage: pairs that have a byte in common in one stage. A legal write in place is none:
    same bytes, the earlier one read for the last time in the stage that writes the later one."""
    found = set()
    for stage in range(10):
        owners: dict[int, list[SharedBuffer]] = {}
        for each in sorted(wanted, key=lambda one: (one.first, one.name)):
            if not each.first <= stage <= each.last:
                continue
            for byte in range(offsets[each.name], offsets[each.name] + each.size_bytes):
                for other in owners.setdefault(byte, []):
                    whole = (offsets[other.name], other.size_bytes) == (offsets[each.name], each.size_bytes)
                    if not (each.in_place_of == other.name and other.last == each.first == stage and whole):
                        found.add((other.name, each.name))
                owners[byte].append(each)
    return found


@given(buffers())
@settings(max_examples=100, deadline=None)
def test_no_two_live_buffers_share_a_byte(wanted):
    offsets = layout(wanted)
    assert set(offsets) == {each.name for each in wanted}
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets.values())
    assert clashes(wanted, offsets) == set()
    assert total(wanted, offsets) == max(offsets[each.name] + each.size_bytes for each in wanted)
    assert total(wanted, offsets) <= sum(each.size_bytes for each in wanted)


def test_the_papers_figure():
    """Figure 3: Reduce.2 in the space of Reduce.1, Divide.1 in that of Exponential.1; 2 of 4 buffers are shared."""
    wanted = (
        SharedBuffer("reduce1", 256, 0, 1),
        SharedBuffer("exponential", 2048, 1, 3),
        SharedBuffer("reduce2", 256, 2, 3),
        SharedBuffer("divide", 2048, 3, 4, "exponential"),
    )
    by_life = layout(wanted)
    assert by_life["divide"] == by_life["exponential"]
    assert by_life["reduce2"] == by_life["reduce1"]
    assert total(wanted, by_life) == 2048 + 256


def test_a_write_in_place_gives_way_to_what_is_in_the_way():
    """The earlier buffer's space may not be free any more in all its bytes: then the later one goes elsewhere."""
    wanted = (SharedBuffer("a", 32, 0, 2), SharedBuffer("b", 32, 2, 3, "a"), SharedBuffer("c", 32, 2, 4, "a"))
    offsets = layout(wanted)
    assert clashes(wanted, offsets) == set()
    assert (offsets["b"] == offsets["a"]) != (offsets["c"] == offsets["a"])


# --- shrinking ------------------------------------------------------------------------------------------


def loads(wanted, without=()):
    """Bytes alive in each stage; one written in place counts from the stage after."""
    return [
        sum(
            each.size_bytes
            for each in wanted
            if each.name not in without and each.first + (each.in_place_of is not None) <= stage <= each.last
        )
        for stage in range(10)
    ]


@given(buffers(), st.integers(0, 40), st.data())
@settings(max_examples=150, deadline=None)
def test_shrinking_relieves_every_stage_and_spares_the_rest(wanted, limit, data):
    limit *= 16
    order = data.draw(st.permutations([each.name for each in wanted]))
    chosen = relieved(wanted, limit, order)
    assert chosen == [name for name in order if name in chosen], "not in the order given"
    assert max(loads(wanted, chosen)) <= limit
    # Each was needed when its turn came: with those before it gone, one of its stages still had too much.
    lives = {each.name: range(each.first + (each.in_place_of is not None), each.last + 1) for each in wanted}
    for at, name in enumerate(chosen):
        before = loads(wanted, chosen[:at])
        assert any(before[stage] > limit for stage in lives[name])


def test_shrinking_takes_none_where_nothing_helps():
    wanted = (SharedBuffer("a", 64, 0, 1), SharedBuffer("b", 64, 5, 6))
    assert relieved(wanted, 64, ["a", "b"]) == []
    assert relieved(wanted, 32, []) == []
    assert relieved(wanted, 32, ["b"]) == ["b"]
    assert relieved((), 0, ["a"]) == []


# --- dominance ------------------------------------------------------------------------------------------


@st.composite
def flows(draw):
    """A data flow: node -> what it reads, from a root; acyclic, with everything reachable or not."""
    count = draw(st.integers(1, 14))
    names = [f"n{at}" for at in range(count)]
    found = {
        name: tuple(draw(st.lists(st.sampled_from(names[at + 1 :]), max_size=4)) if at + 1 < count else ())
        for at, name in enumerate(names)
    }
    return found


@given(flows())
@settings(max_examples=50, deadline=None)
def test_dominance_is_that_all_ways_lead_through(successors):
    """Brute force: take the node away, and see what the root still reaches."""
    tree = Dominance.of(successors, "n0")

    def reached(without):
        stack, seen = ["n0"] if without != "n0" else [], set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [each for each in successors[node] if each != without]
        return seen

    everything = reached(None)
    for above, below in itertools.product(successors, repeat=2):
        wanted = above in everything and below in everything and below not in reached(above)
        assert tree.dominates(above, below) == wanted
    assert not tree.dominates("n0", "nowhere")


@given(buffers(most=7), flows())
@settings(max_examples=100, deadline=None)
def test_by_dominance_only_what_dominates_shares(wanted, successors):
    """Buffers named like nodes of a data flow: space is shared along the tree only; others (workspaces) with all."""
    renamed = {each.name: f"n{at}" for at, each in enumerate(wanted)}
    mine = tuple(
        SharedBuffer(renamed[each.name], each.size_bytes, each.first, each.last, renamed.get(each.in_place_of or ""))
        for each in wanted
    )
    tree = Dominance.of(successors, "n0")
    offsets = layout(mine, tree)
    assert clashes(mine, offsets) == set()
    for one, other in itertools.permutations(mine, 2):
        common = (
            offsets[one.name] < offsets[other.name] + other.size_bytes
            and offsets[other.name] < offsets[one.name] + one.size_bytes
        )
        if common and one.last < other.first and one.name in tree.entered and other.name in tree.entered:
            assert tree.dominates(other.name, one.name)
