"""The languages of inputs: grammar, expressions over sizes, element types."""
