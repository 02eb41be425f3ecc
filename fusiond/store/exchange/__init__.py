"""Answers between machines: signed records, their import, and their use in a look-up.

    entry.py      one answer as a line of JSON: its form, its key, what is refused
    signing.py    ed25519: the key of this box, signatures (cryptography)
    database.py   the file beside the store that holds them: entries, trusted keys, tokens, claims
    records.py    records of the store as entries, and back
    transfer.py   files of them, written and read
    find.py       what a look-up answers from them where the store has nothing

What was imported is data: it lies in a file of its own, and nothing of it comes into the store's tables, from which
jobs are tuned, before its key is trusted and this box has measured it.
"""
