"""A training script as many have one: torchrun --nproc-per-node 2 examples/train_ddp.py"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Stripes(Dataset[tuple[Tensor, int]]):
    """Noisy pictures of stripes; their width is the class."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % 8
        stripes = torch.arange(64) // (label + 1) % 2
        return stripes + 0.5 * torch.randn(3, 64, 64), label


def make_model() -> nn.Module:
    """Two layers are enough for stripes."""
    features = [nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(8)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(1024, 8))


def main(epochs: int = 2) -> None:
    """One rank's training."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    dataset = Stripes()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=1, pin_memory=gpu)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = loss_of(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
