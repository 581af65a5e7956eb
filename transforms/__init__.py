"""The steps of the graph, one file a step: discover, tokenize, plan, write, commit."""
