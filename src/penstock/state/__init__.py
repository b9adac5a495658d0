"""What queries hold, read from outside: windows, tables, counts; while they run and after they stopped."""
