"""Matching of identities: finds which identities belong to one person, in the tables of an id store."""
