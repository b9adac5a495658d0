"""What happens between source and sink: plain functions from frames to frames."""
