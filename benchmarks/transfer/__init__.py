"""The transfer fusion paper's tables 4, 5 and 6 on the device at hand."""
