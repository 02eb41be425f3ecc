"""Words that name no declaration of the file, as clang resolves them, and words that might: which declarations a slice
of a kernel reaches. All sources are of our own."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from fusiond_hfuse.frontend import clang_tree, cursors, name_resolution
from fusiond_hfuse.frontend.declarations import DeclarationWalk, SourceDeclaration

OTHERS = """\
template <class T> struct Table { T at; };
__device__ int size(Table<int> t) { return t.at; }
__device__ int at(Table<int> t) { return t.at; }
__device__ float fmaxf(gone::Row row) { return row.most(); }
namespace user { __device__ int max(Table<int> t) { return 1; } }
struct Row { int length; static int limit; enum Kind { Low, High }; __device__ int most() const; };
__device__ int length(Table<int> t) { return 2; }
#define SQUARED(x) ((x) * (x))
#define LENGTH length
#define JOINED(a, b) a##b
"""

SETTLED = {
    "a parameter": ("__device__ int f(int size) { return size + 1; }", "size"),
    "a local variable": ("__device__ int f(int n) { int at = n; return at; }", "at"),
    "a loop's variable": ("__device__ int f(int n) { for (int at = 0; at < n; ++at) n--; return n; }", "at"),
    "a member": ("__device__ int f(Row r) { return r.length; }", "length"),
    "a method": ("__device__ int f(Row r) { return r.most(); }", "most"),
    "a member, by its initialiser": ("struct Pair { int length; __device__ Pair(int n) : length(n) {} };", "length"),
    "a parameter of a template": ("template <class length> __device__ length f(length a) { return a; }", "length"),
    "a number of a template": ("template <int size> __device__ int f(int a) { return a + size; }", "size"),
    "a capture of a lambda": ("__device__ int f(int at) { return [at](int n) { return n + at; }(1); }", "at"),
    "a type of a body": ("__device__ int f() { struct size { int n; }; size s{1}; return s.n; }", "size"),
    "a parameter in a macro's argument": ("__device__ int f(int size) { return SQUARED(size + 1); }", "size"),
    "a local variable in a macro's in a macro's": ("__device__ int f(int n) { int at = n; return SQUARED(SQUARED(at)); }", "at"),
    "a qualified function of C++'s": ("__device__ int f(int n) { return std::max(n, 1); }", "max"),
    "a type of CUDA's": ("__device__ float f(float4 v) { return v.x; }", "float4"),
}  # fmt: skip

OPEN = {
    "a function": ("__device__ int f(Table<int> t) { return size(t); }", "size"),
    "a type": ("__device__ int f(Row r) { return r.length; }", "Row"),
    "a class of a template": ("__device__ int f(Table<int> t) { return t.at; }", "Table"),
    "a call of what a template leaves open": ("template <class T> __device__ int f(T t) { return size(t); }", "size"),
    "a call in a macro's argument": ("__device__ int f(Table<int> t) { return SQUARED(size(t)); }", "size"),
    "a name that a macro puts together": ("__device__ int f(Table<int> t) { return JOINED(si, ze)(t); }", "size"),
    "a local variable and a function in one argument": ("__device__ int f(int at, Table<int> t) { return SQUARED(at + ::at(t)); }", "at"),
    "a macro": ("__device__ int f(int a) { return SQUARED(a); }", "SQUARED"),
    "a macro that is called like a local variable": ("__device__ int f(int LENGTH) { return LENGTH; }", "LENGTH"),
    "a friend": ("class Mine { int n; friend __device__ int length(Table<int> t); };", "length"),
    "a declaration in a body": ("__device__ int f(Table<int> t) { int size(Table<int>); return size(t); }", "size"),
    "a function of CUDA's that the file overloads": ("__device__ float f(float a) { return fmaxf(a, 1.0f); }", "fmaxf"),
    "a word for two things": ("__device__ void f(Table<int> t) { int n = size(t); {int size = n; n = size; }}", "size"),
    "a name that clang does not know": ("__device__ int f(gone::Row r) { return lookup(r); }", "lookup"),
    "what an enumerator's class is called": ("__device__ int f() { return Row::High; }", "Row"),
}  # fmt: skip


def words(source: str) -> set[str]:
    """Those of the last declaration of a text that can name another one."""
    text = f"{OTHERS}{source}\n"
    code = clang_tree.blanked(text.encode())
    tree = clang_tree.tolerant(text, (), (), (), "800", host=False)
    try:
        found = list(DeclarationWalk(code, set()).declarations(tree.cursor))
        last = next(each for each in reversed(found) if each.names)
        assert text.encode()[last.start : last.end].decode() == source
        return name_resolution.NameResolution(tree, code).words(last)
    finally:
        cursors.forget(tree)


@pytest.mark.parametrize("form", SETTLED)
def test_a_word_that_clang_resolves_reaches_nothing(form):
    source, word = SETTLED[form]
    assert word not in words(source)


@pytest.mark.parametrize("form", OPEN)
def test_a_word_that_may_name_a_declaration_stays(form):
    source, word = OPEN[form]
    assert word in words(source)


def test_what_clang_made_nothing_of_keeps_its_words():
    code = "int size(int);\n"
    tree = clang_tree.tolerant(code, (), (), (), "800", host=False)
    nowhere = SourceDeclaration(len(code), len(code) + 9, words={"size"})
    assert name_resolution.NameResolution(tree, code).words(nowhere) == {"size"}
    cursors.forget(tree)


def test_a_static_member_is_defined_where_its_class_is_reached():
    text = f"{OTHERS}int Row::limit = 3;\n"
    tree = clang_tree.tolerant(text, (), (), (), "800", host=False)
    *_, last = DeclarationWalk(clang_tree.blanked(text.encode()), set()).declarations(tree.cursor)
    assert (last.names, last.member) == ({"Row"}, "limit")
    cursors.forget(tree)


MUTANTS = {
    "members stay": ("RECORDS", ()),
    "parameters stay": ("_FUNCTIONS", ()),
    "what is declared in a body is its own": ("_is_inner", lambda target: True),
    "CUDA's functions cannot be overloaded": ("_certain", lambda cursor, target: True),
    "headers are the user's": ("_elsewhere", lambda target: False),
    "all is a header's": ("_elsewhere", lambda target: True),
    "nothing is looked up": ("_REFERENCES", ()),
    "a macro's arguments are the macro": ("cursors.written_at", lambda cursor: cursor.location.offset),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(monkeypatch, name):
    what, instead = MUTANTS[name]
    place, _, last = what.rpartition(".")
    monkeypatch.setattr(getattr(name_resolution, place) if place else name_resolution, last, instead)
    wrong = [word in words(source) for source, word in SETTLED.values()]
    wrong += [word not in words(source) for source, word in OPEN.values()]
    assert any(wrong)
