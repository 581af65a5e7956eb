"""Conversations: from their JSON to tokens, and which of these are learned."""
