"""vLLM's scheduler with vToken: it owns blocks, epochs and the trace, and applies worker reports.

Source: paper 3.4.
"""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from conformance.trace import TraceWriter
from gpu_impl.vllm import kv_manager
from gpu_impl.vllm.config import UnsupportedError, VTokenConfig, check_supported
from gpu_impl.vllm.kv_manager import VTokenKVManager
from gpu_impl.vllm.messages import StepMessage, VTokenModelRunnerOutput, VTokenSchedulerOutput
from gpu_impl.vllm.recorder import Recorder
from gpu_impl.vllm.trace_header import header
from vtoken_ref.events import Abort, Admit, Finish, FinishReason, Forward, Output, Preempt, Read

FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_REPETITION: "stop",
}


class VTokenScheduler(Scheduler):
    """Schedules by physical length and takes back the blocks that workers give up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vllm_config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        check_supported(vllm_config)
        kv_manager.register()
        self.vtoken_config = VTokenConfig.of(vllm_config)
        super().__init__(*args, **kwargs)
        managers = self.kv_cache_manager.coordinator.single_type_managers
        if len(managers) != 1 or not isinstance(managers[0], VTokenKVManager):
            raise UnsupportedError(
                "vToken needs one KV-cache group of its own worker; set worker_cls to vToken's"
            )
        self.vtoken_manager: VTokenKVManager = managers[0]
        self.epochs: dict[str, int] = {}
        self.step = -1
        path = self.vtoken_config.trace
        writer = None
        if path is not None:
            writer = TraceWriter(path, header(vllm_config, self.kv_cache_config, self.vtoken_config))
        self.recorder = Recorder(writer)
        self.vtoken_manager.recorder = self.recorder

    def add_request(self, request: Request) -> None:
        """Admit a request."""
        self.epochs[request.request_id] = 0
        self.recorder.record(Admit(request.request_id, request.num_prompt_tokens, self.vtoken_config.budget))
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> VTokenSchedulerOutput:
        """Schedule a step and tell the worker which epochs it is for."""
        output = super().schedule(*args, **kwargs)
        if not output.num_scheduled_tokens:
            return VTokenSchedulerOutput.of(output, StepMessage(self.step, {}, 0))
        self.step += 1
        epochs = {req_id: self.epochs[req_id] for req_id in output.num_scheduled_tokens}
        reads = tuple(
            Read(req_id, epochs[req_id], num_query, self._physical_length(req_id), "")
            for req_id, num_query in output.num_scheduled_tokens.items()
        )
        self.recorder.record(Forward(self.step, "begin", reads))
        self.recorder.hold()
        num_free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return VTokenSchedulerOutput.of(output, StepMessage(self.step, epochs, num_free_blocks))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take the worker's report, then let vLLM take the sampled tokens."""
        if isinstance(model_runner_output, VTokenModelRunnerOutput):
            self._apply_report(model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.recorder.flush()
        return outputs

    def shutdown(self) -> None:
        """End the trace; it gets its end event only when every request has ended."""
        num_free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        self.recorder.close(None if self.requests else num_free_blocks)
        super().shutdown()

    def _physical_length(self, req_id: str) -> int:
        """Return the resident length after the forward just scheduled."""
        dropped = self.vtoken_manager.num_dropped.get(req_id, 0)
        return self.requests[req_id].num_computed_tokens - dropped

    def _apply_report(self, output: VTokenModelRunnerOutput) -> None:
        report = output.vtoken
        self.recorder.record_report(report.events)
        for req_id, layout in report.layouts.items():
            if self.epochs.get(req_id) == layout.epoch:
                self.vtoken_manager.apply_layout(req_id, layout)
        for req_id, index in output.req_id_to_index.items():
            vocab_ids = tuple(output.sampled_token_ids[index]) if output.sampled_token_ids else ()
            if vocab_ids and req_id in self.epochs:
                self.recorder.record(Output(req_id, self.epochs[req_id], report.step, vocab_ids))

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """End the request's epoch before its blocks are freed."""
        epoch = self.epochs[request.request_id]
        self.recorder.record(Preempt(request.request_id, epoch))
        self.epochs[request.request_id] = epoch + 1
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Say how the request ended before its blocks are freed."""
        epoch = self.epochs.pop(request.request_id)
        reason = FINISH_REASONS.get(request.status)
        if request.status == RequestStatus.FINISHED_ABORTED:
            self.recorder.record(Abort(request.request_id, epoch))
        else:
            self.recorder.record(Finish(request.request_id, epoch, reason or "error"))
        return super()._free_request(request, *args, **kwargs)
