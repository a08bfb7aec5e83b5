"""What instrumented harnesses report about themselves over OTLP/HTTP."""
