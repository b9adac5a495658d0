"""Record batches v2: from Arrow columns to bytes and back."""
