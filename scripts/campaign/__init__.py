"""The fault campaign of `scripts/soak.py`: rounds of breaks that are drawn from a seed and proved."""
