"""The command line: one module per command; `add(parser)` adds its options, `run(args)` runs it."""
