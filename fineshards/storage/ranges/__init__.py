"""Files of which parts are fetched: readers, and the requests and threads behind them."""
