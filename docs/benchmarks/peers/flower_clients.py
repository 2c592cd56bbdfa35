"""What each client does in Flower. A module of its own: Flower's processes import it."""

import functools

from flwr.app import ArrayRecord
from flwr.app import Context
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
import torch
import workload

client_app = ClientApp()


@functools.cache
def _in_this_process(clients, examples, channels_last):
  """The model and all clients' data: each of Flower's processes keeps its own, whichever clients it gets."""
  torch.set_num_threads(1)
  model = workload.build(channels_last)
  return model, workload.tensors(clients, examples, channels_last)


@client_app.train()
def train(message: Message, context: Context) -> Message:
  """One client's local epoch."""
  config = message.content['config']
  model, data = _in_this_process(config['clients'], config['examples'], config['channels_last'])
  model.load_state_dict(message.content['arrays'].to_torch_state_dict())
  x, y = data[context.node_config['partition-id']]
  optimizer = torch.optim.SGD(model.parameters(), workload.LEARNING_RATE)
  order = torch.randperm(len(x))
  for begin in range(0, len(x), config['batch_size']):
    batch = order[begin : begin + config['batch_size']]
    optimizer.zero_grad()
    with torch.autocast('cpu', torch.bfloat16, enabled=config['dtype'] == 'bfloat16'):
      loss = model.loss(x[batch], y[batch])
    loss.backward()
    optimizer.step()
  content = RecordDict({'arrays': ArrayRecord(model.state_dict()), 'metrics': MetricRecord({'num-examples': len(x)})})
  return Message(content, reply_to=message)
