"""Graph -> Plan: which nodes share a kernel, and over which axes."""
