"""The memory layout of the records of segmentation, for the compiled loops that work on them.

All state of a bucket of persons is one array of words. A record is

    width, hash of the person, rule, position of the person's id, member until, last time, due, queued due, terms ...

and an id is `width, hash, -1, bytes, new position, marks ..., bytes as words ...`: its marks are bits for the rules
that have a record, since most touches are of rules that have none. Times are milliseconds; zero means none. A term is

    count      the n newest times, ascending
    total      the newest bin, then 64 sums, one for each bin of time
    chain      for each step the latest start of a chain that reached it, and the time when it did
    absence    the first waiting event, the last waiting event, and when a wait ended
    latest     the time, and the value

`index` is an open hash table of (hash, rule, position); `heap` is a binary heap of (due, position) with at most one
valid entry per record: the one whose time is the record's `queued due`. Outdated entries are dropped or corrected when
they come up.
"""

from __future__ import annotations

ENTER, PROLONG, LEAVE, EXPIRE = 1, 2, 3, 4
# Words of a record, after its width. An id has the first two as well, and then its own.
KEY, RULE, PERSON, UNTIL, LAST, DUE, QUEUED_DUE = range(1, 8)
ID_BYTES, ID_MOVED = 3, 4
# Words of a term after its first: of an absence, and of the latest value.
LAST_WAITING, ENDED = 1, 2
IS_TRUE = 1
# Words of an entry of the hash table, after the hash.
OF_RULE, AT_RECORD = 1, 2
# Positions in `sizes`: how much of each array is used.
INDEXED, USED, QUEUED, OUT, MOST = range(5)
"""Entries of the hash table, words, entries of the heap, rows of output; and the most rows that one touch can emit."""
LAYOUT = 2
"""The version of this layout; a snapshot contains its version."""
ID_HEAD = 5
"""Words of an id before its marks."""
MARKED = 64
"""Rules in a word of marks."""
NEVER = 1 << 62
