"""What the proxy costs, beside other proxies under the same load in the same run."""
