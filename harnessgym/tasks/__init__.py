"""Task formats: folders on disk that become `Task` values."""
