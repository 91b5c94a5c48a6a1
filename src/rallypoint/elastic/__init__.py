"""`torch.distributed.elastic`, path by path and name by name, without torch."""
