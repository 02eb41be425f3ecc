"""What everything else is said in: nouns and errors, programs, languages, PTX, and the machine below.

The lowest room: it imports nothing of the others.
"""
