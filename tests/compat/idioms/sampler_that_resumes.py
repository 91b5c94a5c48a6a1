"""A training loop goes on in the middle of an epoch, in a world of another size."""

from torch.distributed.elastic.utils.data import CyclingIterator, ElasticDistributedSampler

data = list(range(12))
sampler = ElasticDistributedSampler(data, num_replicas=2, rank=1, start_index=4)
sampler.set_epoch(0)
indices = list(sampler)
print("left", len(sampler), sorted(indices) == sorted(set(indices)), min(indices) >= 4)
print("cycled", list(CyclingIterator(2, lambda epoch: iter([epoch, epoch + 10]))))
