"""Generated C++: expressions that know what they read, statements that know what they declare, and printing.

    Code        :=  text, the names that it reads, the headers that it needs          (code.py)
    Term        :=  Code and how tightly it binds: parentheses by precedence          (operators.py)
    Literal     :=  a number as Code, exactly                                         (literals.py)
    Statements  :=  Line | Declaration | Block, in order; unused declarations go      (statements.py)

Nothing here looks into text: what a piece of Code reads is known from the pieces that it was made of.
"""
