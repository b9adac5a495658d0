"""The command line: one module per command, with `add(parser)` for its options and `run(args)` for its work."""
