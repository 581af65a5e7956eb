"""Conversations: from messages to tokens, and which of them are learned."""
