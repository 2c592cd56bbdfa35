"""The datasets by name. A new one is its own file here and one line in `DATASETS`."""

from typing import Dict, Type

from data.datasets import base
from data.datasets import cifar10
from data.datasets import digits
from data.datasets import femnist
from data.datasets import mnist
from data.datasets import mnist_writers

DATASETS: Dict[str, Type[base.Dataset]] = {
    'digits': digits.Digits,
    'mnist': mnist.Mnist,
    'mnist_writers': mnist_writers.MnistWriters,
    'cifar10': cifar10.Cifar10,
    'femnist': femnist.Femnist,
    'femnist_digits': femnist.FemnistDigits,
}
