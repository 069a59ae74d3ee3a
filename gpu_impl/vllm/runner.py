"""vLLM's CPU model runner (V1) with vToken: attention uses physical lengths, positions stay logical.

RoPE is applied before K is cached, so a surviving or moved key stays right at its logical position.
Only the slots of new tokens and the attention lengths are physical.

Source: paper 3.4.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from conformance.port import load_policy
from gpu_impl.kv_cache import cpu_attention_layout
from gpu_impl.reclaimer import ForwardRead, Reclaimer
from gpu_impl.vllm.config import UnsupportedError, VTokenConfig, check_supported
from gpu_impl.vllm.kv_manager import evictable
from gpu_impl.vllm.messages import VTokenModelRunnerOutput, VTokenSchedulerOutput

NO_SLOTS = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


class VTokenModelRunner(CPUModelRunner):
    """Runs forwards over resident tokens only, then evicts and reclaims."""

    reclaimer_cls: type[Reclaimer] = Reclaimer

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        check_supported(vllm_config)
        self.vtoken_config = VTokenConfig.of(vllm_config)
        super().__init__(vllm_config, device)
        self._step: VTokenSchedulerOutput | None = None
        self._attention: Any = None

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Mark every attention layer evictable."""
        return evictable(super().get_kv_cache_spec())

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        """Give the reclaimer access to the KV of all layers, in model order."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        settings, group = self.vtoken_config, kv_cache_config.kv_cache_groups[0]
        isa = self.compilation_config.static_forward_context[group.layer_names[0]].isa
        try:
            cache = cpu_attention_layout(self.kv_caches, group.kv_cache_spec.block_size, isa)
        except ValueError as error:
            raise UnsupportedError(str(error)) from error
        self.reclaimer = self.reclaimer_cls(
            cache,
            load_policy(settings.policy, settings.policy_args, settings.seed),
            settings.reclaim,
            recording=settings.trace is not None,
        )

    def execute_model(self, scheduler_output: VTokenSchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """Start the epochs that this step begins, then run the forward."""
        self._step = scheduler_output
        for req_id in scheduler_output.preempted_req_ids or ():
            self.reclaimer.drop(req_id)
        resumed = scheduler_output.scheduled_cached_reqs.resumed_req_ids
        for new in scheduler_output.scheduled_new_reqs:
            self._start_epoch(new.req_id, new.prompt_token_ids)
        for req_id in resumed:
            self._start_epoch(req_id, self.requests[req_id].prompt_token_ids)
        return super().execute_model(scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then do vToken's work for the step and report it."""
        output = super().sample_tokens(*args, **kwargs)
        if not isinstance(output, ModelRunnerOutput) or not output.req_ids or self._step is None:
            return output
        step = self._step.vtoken
        report = self.reclaimer.after_forward(step.step, self._forward_reads(), step.num_free_blocks)
        for req_id, layout in report.layouts.items():
            self._set_block_ids(req_id, list(layout.block_ids))
        return VTokenModelRunnerOutput.of(output, report)

    def _start_epoch(self, req_id: str, prompt_token_ids: list[int]) -> None:
        assert self._step is not None
        # The engine adds a random suffix to request ids, so the prompt names the request to a policy.
        req_key = hashlib.blake2b(
            np.array(prompt_token_ids, dtype="<u4").tobytes(), digest_size=8
        ).hexdigest()
        self.reclaimer.start(
            req_id,
            self._step.vtoken.epochs[req_id],
            req_key,
            self.vtoken_config.budget,
            len(prompt_token_ids),
        )

    def _on_request_state_removed(self, req_id: str, req_state: Any) -> None:
        super()._on_request_state_removed(req_id, req_state)
        self.reclaimer.drop(req_id)

    def _prepare_inputs(
        self, scheduler_output: VTokenSchedulerOutput, num_scheduled_tokens: np.ndarray
    ) -> Any:
        """Let vLLM prepare by logical length, then make lengths and slots physical."""
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        num_reqs = self.input_batch.num_reqs
        resident = np.array([self.reclaimer.length(r) for r in self.input_batch.req_ids], dtype=np.int32)
        lengths = torch.from_numpy(resident + num_scheduled_tokens)
        self.seq_lens[:num_reqs] = lengths
        self.optimistic_seq_lens_cpu[:num_reqs] = lengths
        table = self.input_batch.block_table[0]
        rows = np.repeat(np.arange(num_reqs), num_scheduled_tokens)
        num_tokens = len(rows)
        index = resident[rows] + self.query_pos.np[:num_tokens]
        slots = table.block_table.np[rows, index // table.block_size].astype(np.int64) * table.block_size
        table.slot_mapping.gpu[:num_tokens] = torch.from_numpy(slots + index % table.block_size)
        return prepared

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Keep what the attention kernel is given: reads are verified against this, not our tables."""
        metadata, common = super()._build_attention_metadata(*args, **kwargs)
        self._attention = next(iter(metadata.values()), None)
        return metadata, common

    def _forward_reads(self) -> list[ForwardRead]:
        """Return what each request read and wrote in the forward that has just run."""
        assert self._step is not None
        reads = []
        for row, req_id in enumerate(self.input_batch.req_ids):
            num_query = self._step.num_scheduled_tokens[req_id]
            written, read = self._kernel_slots(row, num_query) if self.reclaimer.recording else NO_SLOTS
            computed = int(self.input_batch.num_computed_tokens_cpu[row])
            vocab_ids = self.input_batch.token_ids_cpu[row, computed : computed + num_query]
            reads.append(
                ForwardRead(
                    req_id=req_id,
                    num_computed_tokens=computed,
                    vocab_ids=tuple(vocab_ids.tolist()),
                    written_slots=written,
                    read_slots=read,
                    block_ids=tuple(self.requests[req_id].block_ids[0]),
                )
            )
        return reads

    def _kernel_slots(self, row: int, num_query: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slots that the kernel was given to write and to read for one row of the batch."""
        kernel, block_size = self._attention, self.reclaimer.cache.block_size
        start = int(kernel.query_start_loc[row])
        index = torch.arange(int(kernel.seq_lens[row]))
        blocks = kernel.block_table[row, index // block_size].to(torch.int64)
        written = kernel.slot_mapping[start : start + num_query].to(torch.int64)
        return written, blocks * block_size + index % block_size

    def _set_block_ids(self, req_id: str, block_ids: list[int]) -> None:
        """Replace a request's block list in vLLM's worker state."""
        self.requests[req_id].block_ids[0][:] = block_ids
        self.input_batch.block_table.add_row((block_ids,), self.input_batch.req_id_to_index[req_id])
