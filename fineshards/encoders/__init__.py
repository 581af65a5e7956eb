"""Tokenizers behind one small interface: Arrow strings in, flat token arrays out. No Beam."""
