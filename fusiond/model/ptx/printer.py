"""`Module` -> PTX text: one statement a line, blocks indented. A module that is parsed and printed assembles to the
same code, without comments and debug sections."""

from collections.abc import Iterator, Sequence

from fusiond.model.ptx.tree import (
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    PtxBlock,
    PtxRegisters,
    Statement,
    Variable,
)


def printed(module: Module) -> str:
    """The text of a module."""
    lines = [f".version {module.version}", f".target {', '.join(module.target)}"]
    lines.append(f".address_size {module.address_size}")
    for each in module.items:
        if isinstance(each, Function):
            lines += ["", *function_lines(each)]
        elif isinstance(each, Variable):
            lines.append(variable_text(each) + ";")
        else:
            lines.append(directive_text(each))
    return "\n".join([*lines, ""])


def function_lines(function: Function) -> Iterator[str]:
    head = " ".join([*function.linkage, f".{function.kind}"])
    attributes = [each for each in function.directives if each[0] == ".attribute"]
    head += "".join(f" {''.join(each)}" for each in attributes)
    if function.returns:
        head += f" ({', '.join(variable_text(each) for each in function.returns)})"
    directives = [f"{each[0]} {', '.join(each[1:])}".rstrip() for each in function.directives if each not in attributes]
    end = "" if function.body is not None else ";"
    if not function.parameters:
        yield f"{head} {function.name}()" + ("" if directives else end)
    else:
        yield f"{head} {function.name}("
        for each in function.parameters[:-1]:
            yield f"    {variable_text(each)},"
        yield f"    {variable_text(function.parameters[-1])}"
        yield ")" + ("" if directives else end)
    for at, text in enumerate(directives):
        yield text + (end if at == len(directives) - 1 else "")
    if function.body is not None:
        yield from block_lines(function.body, "")


def block_lines(block: PtxBlock, indent: str) -> Iterator[str]:
    yield indent + "{"
    inner = indent + "    "
    for each in block.statements:
        if isinstance(each, Instruction):  # nearly all
            yield inner + instruction_text(each)
        elif isinstance(each, PtxBlock):
            yield from block_lines(each, inner)
        else:
            yield statement_line(each, indent)
    yield indent + "}"


def statement_line(statement: Statement, indent: str) -> str:
    """A statement that is no block, one step further in than `indent`; labels stand out."""
    if isinstance(statement, Label):
        return f"{indent}{statement.name}:"
    if isinstance(statement, PtxRegisters):
        names = ", ".join(name if count is None else f"{name}<{count}>" for name, count in statement.names)
        return f"{indent}    .reg .{statement.type} {names};"
    if isinstance(statement, Variable):
        return f"{indent}    {variable_text(statement)};"
    if isinstance(statement, Directive):
        return f"{indent}    {directive_text(statement)}"
    assert isinstance(statement, Instruction)
    return f"{indent}    {instruction_text(statement)}"


def instruction_text(instruction: Instruction) -> str:
    guard = f"@{instruction.guard} " if instruction.guard else ""
    return f"{guard}{instruction.opcode} {instruction.text};" if instruction.text else f"{guard}{instruction.opcode};"


def variable_text(variable: Variable) -> str:
    at = variable.attributes.index(".ptr") if ".ptr" in variable.attributes else len(variable.attributes)
    words = [*variable.linkage, f".{variable.space}", *variable.attributes[:at], f".{variable.type}"]
    words += [*variable.attributes[at:], variable.name + "".join(f"[{each}]" for each in variable.extents)]
    initial = f" = {''.join(variable.initial).replace(',', ', ')}" if variable.initial else ""
    return " ".join(words).replace(" ( ", "(").replace(" )", ")") + initial


def directive_text(directive: Directive) -> str:
    """With the `;` that some of them end in."""
    text = _spaced(directive.words)
    return text if directive.kind in ("loc", "file") else text + ";"


def _spaced(words: Sequence[str]) -> str:
    """Words as a declaration has them, blanks between names and none around marks."""
    text = ""
    for word in words:
        tight = not text or word in ",;:)]>" or text[-1] in "([<" or (word in "([<" and text[-1] != ",")
        text += word if tight else f" {word}"
    return text
