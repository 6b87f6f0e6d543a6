"""The page on which plans are tried and runs are watched, served from this machine."""
