"""The model, the data of a partition, and how the model is trained and tested."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network for digits of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 4 * 4, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores ``[n, 10]`` of images ``[n, 1, 8, 8]``."""
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)
        return self.out(functional.relu(self.hidden(x.flatten(1))))


def _digits() -> tuple[Tensor, Tensor]:
    """Return all images and labels, in an order that is the same at every node."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images[order], torch.tensor(y)[order]


def load_data(partition: int, partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return the training and the test batches of one partition of the first 1,400 digits."""
    x, y = _digits()
    x, y = x[:1400][partition::partitions], y[:1400][partition::partitions]
    cut = int(0.8 * len(y))
    train = DataLoader(TensorDataset(x[:cut], y[:cut]), batch_size=batch_size, shuffle=True)
    return train, DataLoader(TensorDataset(x[cut:], y[cut:]), batch_size=batch_size)


def load_server_data() -> DataLoader:
    """Return the test batches of the server: the digits that no partition has."""
    x, y = _digits()
    return DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=128)


def train(net: Net, batches: DataLoader, epochs: int, lr: float) -> float:
    """Train the model and return its mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total, steps = 0.0, 0
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
    return total / steps


def test(net: Net, batches: DataLoader) -> tuple[float, float]:
    """Return the model's mean loss and its accuracy."""
    net.eval()
    loss, right, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            scores = net(x)
            loss += functional.cross_entropy(scores, y, reduction="sum").item()
            right += int((scores.argmax(1) == y).sum())
            n += len(y)
    return loss / n, right / n
