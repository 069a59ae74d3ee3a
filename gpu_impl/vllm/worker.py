"""vLLM's CPU worker with vToken's model runner."""

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from gpu_impl.vllm.runner import VTokenModelRunner


class VTokenWorker(CPUWorker):
    """The CPU worker; give it to vLLM as ``worker_cls``."""

    runner_cls: type[VTokenModelRunner] = VTokenModelRunner

    def init_device(self) -> None:
        """Set the device up as vLLM does, with vToken's runner in place of vLLM's."""
        super().init_device()
        self.model_runner = self.runner_cls(self.vllm_config, torch.device("cpu"))
