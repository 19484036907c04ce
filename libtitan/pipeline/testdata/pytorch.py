"""Writes this folder's goldens from PyTorch's own schedule classes: python3 pytorch.py (made with 2.14.1, on CPU)."""

import zlib

import torch.distributed.pipelining.schedules as S
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

SCHEDULES = {  # class, stages a rank
    "Interleaved1F1B": (S.ScheduleInterleaved1F1B, (2, 3)),
    "LoopedBFS": (S.ScheduleLoopedBFS, (2, 3)),
    "InterleavedZeroBubble": (S.ScheduleInterleavedZeroBubble, (2, 3)),
    "ZBVZeroBubble": (S.ScheduleZBVZeroBubble, (2,)),
    "DualPipeV": (S.ScheduleDualPipeV, (2,)),
    "GPipe": (S.ScheduleGPipe, (1,)),
}
SMALL = ["Interleaved1F1B-2-2-4", "LoopedBFS-2-2-2", "InterleavedZeroBubble-2-2-4", "ZBVZeroBubble-2-2-4", "DualPipeV-2-2-5", "GPipe-2-1-3"]


def orders(name, pp, v, m):
    """The compute-only and the lowered order as CSV, or None where the class refuses the numbers."""
    cls = SCHEDULES[name][0]
    s = cls.__new__(cls)  # no stages, no process group
    s.pp_group_size, s.n_local_stages, s._stages = pp, v, [None] * v
    s.num_stages = s._num_stages = pp * v
    s._n_microbatches = m
    s.number_of_rounds = max(1, m // pp)
    s.microbatches_per_round = m // s.number_of_rounds
    if name.startswith("Interleaved") and m % s.number_of_rounds or name == "DualPipeV" and m < pp * v:
        return None
    if name == "GPipe":
        rows = s._get_pipeline_order()
    else:
        rows = {r: s._calculate_single_rank_operations(r) for r in range(pp)}
    rows = {r: [a for a in row if a is not None and a.computation_type != S.REDUCE_GRAD] for r, row in rows.items()}
    rank_of = generate_stage_to_rank_mapping(pp, pp * v, "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop")
    lowered = S._add_send_recv({r: S._add_reduce_grad(row, m) for r, row in rows.items()}, rank_of.get, pp * v)
    return ["".join(",".join(map(str, o[r])) + "\n" for r in range(pp)) for o in (rows, lowered)]


with open("pytorch.csv", "w") as sums:
    print("schedule,pp,stages_per_rank,microbatches,crc32,crc32_lowered", file=sums)
    for name, (_, per_rank) in SCHEDULES.items():
        for pp in range(1, 9):
            for v in per_rank:
                for m in range(1, 17):
                    if texts := orders(name, pp, v, m):
                        print(name, pp, v, m, *("%08x" % zlib.crc32(t.encode()) for t in texts), sep=",", file=sums)
for key in SMALL:
    name, *numbers = key.split("-")
    for suffix, text in zip((".csv", ".lowered.csv"), orders(name, *map(int, numbers))):
        with open(key + suffix, "w") as f:
            f.write(text)
