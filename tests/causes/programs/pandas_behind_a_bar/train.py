import time
import pandas as pd
from tqdm import tqdm

frame = pd.DataFrame({"text": ["a", "b", "c"] * 40, "label": [0, 1, 2] * 40})
bar = tqdm(total=120, desc="epoch 0", mininterval=0.01)
for step in range(120):
    time.sleep(0.002)
    bar.update()
    if step == 57:
        targets = frame["labels"]
