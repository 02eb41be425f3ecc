"""Compilers: source text in, binary and facts out, answered from a content-addressed cache. The only place that
reads a
compiler's messages."""
