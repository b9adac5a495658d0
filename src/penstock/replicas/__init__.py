"""Tables of databases that every worker has whole."""
