"""The processes of a run on the machines of a Ray cluster, under the same supervisor as on one machine."""
