"""A vLLM worker whose KV memory changes by one byte between the first copy and its commit."""

from gpu_impl.vllm.runner import VTokenModelRunner
from gpu_impl.vllm.worker import VTokenWorker
from tests.test_replay import OneByteFlips


class OneByteFlipsRunner(VTokenModelRunner):
    reclaimer_cls = OneByteFlips


class OneByteFlipsWorker(VTokenWorker):
    runner_cls = OneByteFlipsRunner
