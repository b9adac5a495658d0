"""Matching of identities: which of them are one person, in the tables of an id store."""
