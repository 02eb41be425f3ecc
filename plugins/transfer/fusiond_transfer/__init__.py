"""The strategy `transfer`: host-device copies laid together into fewer messages.

Not there yet: this package registers nothing.
"""
