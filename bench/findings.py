"""One table of everything a reader should be told: a code, how grave, what to look for, what to do about it."""

from typing import Literal, NamedTuple

from bench.answers import Finding
from bench.checks import causes, devices, memory, network, nodes, recipe, same, setup, trust, watched
from bench.checks.seen import Check, Known, capped

Level = Literal["info", "warning", "problem"]


class Rule(NamedTuple):
    """One row. A check gives the message and the evidence; `remedy` says what to do."""

    code: str
    level: Level
    check: Check
    remedy: str


TABLE = (
    Rule("failed-launches", "problem", setup.failed_launches, "look at the log of the rank that failed first"),
    Rule("not-in-effect", "problem", setup.settings_not_in_effect,
         "change the setting or the host; these rows are in no curve and no comparison"),
    Rule("not-the-same", "problem", same.not_the_same,
         "look at what there depends on the rank (RANK, seeds, hooks); scalemark verify SUITE shows all checks"),
    Rule("aa-differs", "problem", trust.aa_differs,
         "look for what differs between two runs of one cell (placement, clocks, other work), and measure again"),
    Rule("throughput-falls", "problem", causes.throughput_falls,
         "use fewer devices, or give each more work a step (a larger batch), or a faster link between them"),
    Rule("throughput-may-fall", "warning", causes.throughput_may_fall,
         "measure several launches (without --quick); if it stays, use fewer devices, or more work a step on each"),
    Rule("threads-differ", "problem", setup.baseline_threads,
         "set threads in the case, the same for the base and every point"),
    Rule("memory-contradicts", "problem", memory.memory_contradicts,
         "do not trust these memory figures: look for another process on the device, and at their source"),
    Rule("ecc-errors", "problem", devices.ecc_errors,
         "trust no result of this device: look at nvidia-smi -q -d ECC, reset it, or have it replaced"),
    Rule("watch-sees", "warning", watched.watch_sees, "mend the loop, and watch it again"),
    Rule("super-linear", "warning", causes.superlinear,
         "measure the base again under the same settings, and look for what differs before believing it"),
    Rule("cpu-oversubscribed", "warning", setup.cpus_oversubscribed,
         "use fewer ranks, loader workers or threads, or ask for more CPUs"),
    Rule("devices-oversubscribed", "warning", setup.devices_oversubscribed,
         "read these rows as a test that it runs; for scaling use at most one rank a device"),
    Rule("hiccups", "warning", trust.hiccups,
         "look for what stops the host for a moment (other work, disks, memory), and measure more steps"),
    Rule("input-bound", "warning", causes.input_bound,
         "raise num_workers where CPUs are free, make decoding cheaper, or keep the data closer"),
    Rule("copy-bound", "warning", causes.copy_bound, "try pin_memory together with non_blocking, or a smaller input"),
    Rule("slow-rank", "warning", causes.slow_rank, "look at that rank's device, clocks, CPU affinity and neighbours"),
    Rule("link-saturated", "warning", network.link_saturated,
         "exchange less (comm_hook fp16 or bf16, grad_accumulation, a larger batch), or take a faster link"),
    Rule("wrong-interface", "warning", network.wrong_interface,
         "name the interface: --interface NAME, and NCCL_SOCKET_IFNAME where NCCL took another"),
    Rule("ib-unused", "warning", network.infiniband_unused,
         "let nccl use it: unset NCCL_IB_DISABLE and NCCL_NET; gloo speaks TCP only: give it the port's own interface"),
    Rule("interface-variables", "warning", nodes.interface_variables, "name interfaces as the library does that reads them"),
    Rule("nodes-differ", "warning", nodes.nodes_differ,
         "take equal nodes, or read every efficiency as that of the slowest"),
    Rule("slow-pair", "warning", nodes.slow_pair, "look at cable, switch and speed of the two; leave one out meanwhile"),
    Rule("dataparallel-overhead", "warning", causes.dataparallel_overhead, "use ddp in the place of dp"),
    Rule("loss-not-finite", "warning", recipe.loss_not_finite,
         "lower the learning rate, or use bf16 in place of fp16: such steps may not take what real ones take"),
    Rule("not-converged", "warning", trust.not_converged,
         "go on with --resume and a larger budget; intervals that stay wide need a quieter host"),
    Rule("busy-host", "warning", trust.busy_host, "measure again when nothing else runs: these numbers are too low"),
    Rule("contaminated", "warning", trust.contaminated,
         "measure again when the machine is quiet: docs/method.md has every cause, and which of them make a launch run again"),
    Rule("foreign-process", "warning", devices.foreign_processes,
         "measure again when the device is free: nvidia-smi shows who is on it"),
    Rule("rank-on-two-devices", "warning", devices.rank_on_other_device,
         "take the device before anything allocates, load with map_location='cpu', and name no bare device 'cuda'"),
    Rule("clocks-throttled", "warning", devices.clocks_throttled,
         "look at cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),
    Rule("unsteady", "warning", trust.unsteady,
         "measure more steps, and look for heat, power limits or other work on the host"),
    Rule("study-drifts", "warning", trust.study_drifts,
         "let the machine warm up before the study; comparisons are paired by block and stand, levels of cells do not"),
    Rule("instrumentation-cost", "warning", trust.instrumentation_cost,
         "give each step more work (a larger batch); compare such cells with each other only"),
    Rule("two-modes", "warning", trust.two_modes,
         "look for what differs between the groups: placement, clocks, other work on the host"),
    Rule("mixed-hosts", "warning", setup.mixed_hosts, "compare only launches of one host and one set of versions"),
    Rule("speed-variables", "warning", setup.speed_variables, "unset them, or keep them equal in all you compare"),
    Rule("shm-short", "warning", memory.shm_short,
         "raise /dev/shm (docker: --shm-size), or lower num_workers, prefetch_factor or the batch"),
    Rule("files-grow", "warning", memory.files_grow, "do not keep batches after their step; raise ulimit -n meanwhile"),
    Rule("memory-uneven", "warning", memory.memory_uneven,
         "size the batch for the fullest device, or use ddp, which gathers nothing on device 0"),
    Rule("phases-missing", "warning", causes.phases_missing, "measure again with every phase recorded"),
    Rule("broken-lines", "warning", setup.broken_lines, "run again with --resume to replace the launches that are lost"),
    Rule("governor", "info", setup.governor,
         "cpupower frequency-set -g performance, where you may; else read small differences on CPUs with care"),
    Rule("reference-used", "info", setup.reference_used,
         "read these rows as a test of the method; measure on accelerators for torch's own"),
    Rule("stand-ins-used", "info", setup.stand_ins_used, "read these numbers as a calibration, not as a model's speed"),
    Rule("serial-hook", "info", setup.serial_hook,
         "read its communication as an upper limit: on devices torch's own hook overlaps with backward"),
    Rule("pin-memory-idle", "info", setup.pinning_without_accelerator, "leave pin_memory off here"),
    Rule("samples-uneven", "info", setup.samples_uneven,
         "choose ranks and batch so that the data divides; throughput counts what was really stepped"),
    Rule("straggler-possible", "info", causes.straggler_unnamed,
         "run single on each device alone: a slow device shows there; if all are equal, it is the exchange"),
    Rule("more-bytes-than-ring", "info", network.more_bytes_than_ring,
         "look for other exchanges (buffers, SyncBN, the model's own), retransmissions and other programs on the link"),
    Rule("hostname-loopback", "info", nodes.hostname_loopback, "set GLOO_SOCKET_IFNAME elsewhere, or mend /etc/hosts"),
    Rule("clocks-differ", "info", nodes.clocks_differ,
         "nothing to do for the numbers, which use no wall clock; let a time service set the clocks, so that logs match"),
    Rule("compile-time", "info", recipe.compile_time, "count it for short trainings; it is in no other number here"),
    Rule("state-split", "info", recipe.state_split, "weigh it against what the strategy costs in throughput"),
    Rule("enough-workers", "info", causes.enough_workers, "set num_workers to this"),
    Rule("clocks-limited", "info", devices.clocks_limited,
         "normal at full load; compare only devices with the same limit (nvidia-smi -q -d POWER)"),
    Rule("steady-assumed", "info", trust.steady_assumed, "set steps to 53 or more to have warm-up found"),
    Rule("rank-warnings", "info", setup.rank_warnings, "follow the warning, or ignore it knowingly"),
    Rule("not-verified", "info", same.not_told,
         "read comparisons of these cells as of what was asked for, not of what is known to train alike"),
    Rule("not-run", "info", setup.not_run, "go on with --resume"),
    Rule("quick-study", "info", trust.quick_study, "run without --quick for intervals and verdicts"),
)  # fmt: skip


def findings(known: Known) -> tuple[Finding, ...]:
    """Everything that the checks saw, problems first, in the order of the table."""
    found = [
        Finding(
            code=rule.code,
            level=rule.level,
            message=seen.message,
            remedy=seen.remedy or rule.remedy,
            evidence=seen.evidence,
            cells=seen.cells,
        )
        for rule in TABLE
        for seen in capped(list(rule.check(known)))
    ]
    order = ("problem", "warning", "info")
    return tuple(sorted(found, key=lambda finding: order.index(finding.level)))
