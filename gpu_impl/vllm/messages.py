"""What scheduler and worker tell each other with every step, on vLLM's own step messages."""

from dataclasses import dataclass, field, fields

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from gpu_impl.reclaimer import WorkerReport


@dataclass(frozen=True, slots=True)
class StepMessage:
    """Scheduler to worker: the forward's number, the epochs in it, and the free blocks."""

    step: int
    epochs: dict[str, int]
    num_free_blocks: int


@dataclass
class VTokenSchedulerOutput(SchedulerOutput):
    """vLLM's step with vToken's message."""

    vtoken: StepMessage = field(default_factory=lambda: StepMessage(-1, {}, 0))

    @classmethod
    def of(cls, output: SchedulerOutput, message: StepMessage) -> "VTokenSchedulerOutput":
        """Return the same step with a message."""
        return cls(**{f.name: getattr(output, f.name) for f in fields(output)}, vtoken=message)


@dataclass
class VTokenModelRunnerOutput(ModelRunnerOutput):
    """vLLM's result of a step with vToken's report."""

    vtoken: WorkerReport = field(default_factory=lambda: WorkerReport(-1))

    @classmethod
    def of(cls, output: ModelRunnerOutput, report: WorkerReport) -> "VTokenModelRunnerOutput":
        """Return the same result with a report."""
        return cls(**{f.name: getattr(output, f.name) for f in fields(output)}, vtoken=report)
