"""What may be fused, and what it is worth."""
