"""The phases of tuning one job; `fusiond.tuning.tuner` runs them."""
