"""An app whose migrations guard its tables."""
