"""What users and our own tests test with. Bundled servers live here and are only ever run as processes."""
