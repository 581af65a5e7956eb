"""The command line: flags in, one call, words out."""
