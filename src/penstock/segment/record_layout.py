"""How the records of segmentation lie in memory, for the compiled loops that work on them.

All state of a bucket of persons is one array of words. A record is

    width, hash of the person, rule, place of the person's id, member until, last time, due, queued due, terms ...

and an id is `width, hash, -1, bytes, new place, marks ..., bytes as words ...`: its marks are bits that tell for which
rules there is a record, since most touches are of rules that have none. Times are milliseconds; zero means none. A term
is

    count      the n newest times, ascending
    total      the newest bin, then 64 sums, one for each bin of time
    chain      for each step the latest start of a chain that came so far, and when it did
    absence    the first event that waits, the last one, and when a wait ended
    latest     when, and what

`index` is an open hash table of (hash, rule, place); `heap` a binary heap of (due, place), at most one valid entry a
record: the one that the record names. Entries that are out of date are dropped, or set right, when they come up.

The machine code of a loop has that of the loops it calls in it, and is kept by its own file alone: who changes one of
these files removes `__pycache__`.
"""

from __future__ import annotations

ENTER, PROLONG, LEAVE, EXPIRE = 1, 2, 3, 4
# Places of `sizes`: how much of each array is used.
INDEXED, USED, QUEUED, OUT, MOST = range(5)
"""Entries of the hash table, words, entries of the heap, rows of output; and the rows that one touch can put out."""
LAYOUT = 2
"""Which of the layouts there were this is; a snapshot names its own."""
ID_HEAD = 5
"""Words of an id before its marks."""
MARKED = 64
"""Rules in a word of marks."""
NEVER = 1 << 62
