# SPDX-License-Identifier: Apache-2.0
"""Small networks of every shape the group finder must know."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)  # ranks are threads, and machines that run tests are small


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inp, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = None
        if stride != 1 or inp != out:
            self.down = nn.Sequential(
                nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (self.down(x) if self.down is not None else x))


class ResNet(nn.Module):
    def __init__(self, width=8, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.block1 = Block(width, width)
        self.block2 = Block(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        x = self.block2(self.block1(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Flat(nn.Module):
    """Convolutions, then a Linear layer on the flattened map: one channel is 16 columns."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 16, 12)
        self.fc2 = nn.Linear(12, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return self.fc2(torch.relu(self.fc1(x)))


class Depthwise(nn.Module):
    """MobileNet's inverted residual, with squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.expand = nn.Conv2d(4, 12, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.deep = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.squeeze = nn.Conv2d(12, 3, 1)
        self.excite = nn.Conv2d(3, 12, 1)
        self.project = nn.Conv2d(12, 4, 1, bias=False)
        self.act = nn.ReLU6()

    def forward(self, x):
        y = self.act(self.bn1(self.expand(x)))
        y = self.act(self.bn2(self.deep(y)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * gate)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = nn.Conv2d(1, 6, 3, padding=1)
        self.enc2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 5, 2, stride=2)
        self.bn = nn.BatchNorm2d(5)
        self.dec = nn.Conv2d(11, 7, 3, padding=1)
        self.head = nn.Conv2d(7, 2, 1)

    def forward(self, x):
        a = torch.relu(self.enc1(x))
        b = torch.relu(self.enc2(a))
        u = torch.relu(self.bn(self.up(b)))
        return self.head(torch.relu(self.dec(torch.cat([u, a], dim=1))))


class Grouped(nn.Module):
    """A convolution in two groups between two plain ones (ResNeXt)."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 8, 3, padding=1)
        self.g = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.b = nn.Conv2d(12, 2, 1)

    def forward(self, x):
        return self.b(F.relu(self.g(F.relu(self.a(x)))))


class Attention(nn.Module):
    """A transformer block out of Linear layers: separate q, k, v; LayerNorm before."""

    def __init__(self, width=16, heads=4, fused=False, sdpa=False):
        super().__init__()
        self.heads, self.fused, self.sdpa = heads, fused, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x):
        n, t, c = x.shape
        y = self.norm1(x)
        if self.fused:
            qkv = self.qkv(y).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]
        else:
            shape = (n, t, self.heads, c // self.heads)
            q, k, v = (f(y).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Branchy(nn.Module):
    """Control flow that depends on data: cannot be traced."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.inner = Switch()
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.mid = nn.Linear(6, 6)

    def forward(self, x):
        return self.mid(x) if x.sum() > 0 else x
