"""The numbers of a run: reads them, keeps them, and feeds them to metrics sinks."""
