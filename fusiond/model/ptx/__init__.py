"""PTX: its text, its tree, and changes to it, independent of any kernel's purpose.

    Module       :=  version, target, address size, (Function | Variable | Directive)*
    Function     :=  linkage, entry | func, name, Variable* results, Variable* parameters, directives, PtxBlock?
    PtxBlock     :=  { (Instruction | Label | PtxRegisters | Variable | Directive | PtxBlock)* }      a scope of names
    Instruction  :=  [@ [!] predicate] opcode operand, ... ;
    Operand      :=  name [+ bytes] | number | [address] | [map, {x, y}] | {a, b} | (a, b) | !p | r|p

    parser.parse: text -> Module         printer.printed: Module -> text         flat.parse: text -> PtxModule
    operands.parse: Instruction -> typed operands          rewrite: Module -> Module, changed
    uses.of_parameters: what each parameter's memory is for

The language is NVIDIA's "Parallel Thread Execution ISA"; sections are cited by their names.
"""
