"""The store: one SQLite file, and the artifacts in a folder beside it.

    database.py     Store: the whole of it, put together from one class a noun (needs sqlite_utils)
    lookup.py       the answer to `fusiond best`, with nothing but the standard library

This package imports nothing, so that a lookup does not pay for the rest.
"""
