"""The fault campaign of `scripts/soak.py`: rounds of breaks, drawn from a seed, with checks of the results."""
