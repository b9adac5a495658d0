"""Segments: rules over a stream of events, and who is a member of which segment when."""
