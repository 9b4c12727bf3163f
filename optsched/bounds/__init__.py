"""Lower bounds with certificates: prices of memory, sizes of running sets, machines."""
