"""What tests share: an oracle, servers, drivers, made-up input."""
