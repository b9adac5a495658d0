"""What every process has: the end at a signal, log lines, waits, paths, settings that hide secrets."""
