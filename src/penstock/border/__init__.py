"""The border of the package: public functions check their arguments, and tell faults in words of the user."""
