"""Registers in Kubernetes: one ConfigMap per job, by the API server and a pod's service account.

The client is our own and small: the official one is too heavy to be imported by every agent. It
blocks, as the calls of all registers do. Imported with this backend alone.
"""
