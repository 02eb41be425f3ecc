"""The phases of tuning one job; `fusiond.tuner` runs them."""
