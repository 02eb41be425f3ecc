"""What this plugin registers: nothing yet."""
