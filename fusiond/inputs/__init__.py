"""What users write beside code: documents, values, and what buffers are filled with."""
