import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if index == 7:
            record = {f"field_{n}": "x" * (n % 40) for n in range(400)}
            raise ValueError(f"sample {index} has no label, its record is {record}")
        return torch.tensor(float(index))

if __name__ == "__main__":
    for batch in DataLoader(Samples(), batch_size=4, num_workers=1):
        print("batch", batch.tolist(), flush=True)
