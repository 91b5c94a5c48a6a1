"""Registers in Kubernetes: one ConfigMap per job, by the API server and a pod's service account.

The client is our own and small: the official one is too heavy to be imported by every agent. It is
blocking, as etcd's is and for the same reason. Imported with this backend alone.
"""
