"Where outputs come from."
