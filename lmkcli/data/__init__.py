"""The field's own files: collections, runs, and every format that others write."""
