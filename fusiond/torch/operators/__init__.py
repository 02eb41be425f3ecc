"""The table: operator of torch -> a function that writes its instructions."""

from fusiond.torch.operators import elementwise, movement, reductions, windows
from fusiond.torch.operators.table import COMPLEX, MOVEMENT, PRODUCTS, TABLE, VIEWS, OperatorCall, Unsupported

__all__ = ["COMPLEX", "MOVEMENT", "PRODUCTS", "TABLE", "VIEWS", "OperatorCall", "Unsupported"]

_ = (elementwise, movement, reductions, windows)  # each fills the table
