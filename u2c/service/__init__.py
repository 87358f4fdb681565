"From a network to a service."
