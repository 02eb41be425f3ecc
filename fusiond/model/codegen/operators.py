"""Operator expressions, with the parentheses that C++ needs and no others.

    binary("*", binary("+", a, b), prefix("-", c)).code        (a + b) * -c

Operators associate to the left, so a right operand of the same precedence stands in parentheses: `a - (b - c)`.
"""

from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp

PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
CHOICE, UNARY, CAST, ATOM = 0, 11, 12, 13


@dataclass(frozen=True, slots=True)
class Term:
    """An expression and how tightly it binds: a name, a call and a literal without a sign are atoms."""

    code: Code
    level: int = ATOM

    def within(self, least: int) -> Code:
        """The expression where its surroundings bind at that level: in parentheses if it binds less tightly."""
        return self.code if self.level >= least else cpp("({})", self.code)


def atom(text: str) -> Term:
    return Term(cpp("{}", text))


def binary(operator: str, left: Term, right: Term) -> Term:
    level = PRECEDENCE[operator]
    return Term(cpp("{} {} {}", left.within(level), operator, right.within(level + 1)), level)


def prefix(operator: str, operand: Term) -> Term:
    """A sign or a negation. Two of them do not touch: `--a` is another operator."""
    return Term(cpp("{}{}", operator, operand.within(CAST)), UNARY)


def cast(kind: str, operand: Term) -> Term:
    """`(KIND)operand`. A sign behind it stands in parentheses: `(KIND)-a` could be a difference."""
    return Term(cpp("({}){}", kind, operand.within(CAST)), CAST)


def choice(condition: Term, then: Term, otherwise: Term) -> Term:
    operands = (each.within(CHOICE + 1) for each in (condition, then, otherwise))
    return Term(cpp("{} ? {} : {}", *operands), CHOICE)
