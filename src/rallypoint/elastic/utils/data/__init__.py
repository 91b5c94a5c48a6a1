"""Data sets for a job that resumes in the middle of an epoch."""

from __future__ import annotations

from rallypoint.elastic.utils.data.cycling_iterator import CyclingIterator as CyclingIterator
from rallypoint.elastic.utils.data.elastic_distributed_sampler import (
    ElasticDistributedSampler as ElasticDistributedSampler,
)
