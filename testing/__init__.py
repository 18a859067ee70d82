"""What users and our own tests test with. Bundled demo and fake servers live here and are only ever run as processes."""
