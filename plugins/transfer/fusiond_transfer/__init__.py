"""The strategy `transfer`: host-device copies laid together into fewer messages."""
