"""The command line: a function per command adds its options to a parser, and sets the function `run` that runs it."""
