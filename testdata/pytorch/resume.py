"""Goes on from a step folder of titan-run as torchtitan would, in plain PyTorch, and compares the losses.

    python3 resume.py STEP_FOLDER MANIFEST.json METRICS.jsonl TEXT

MANIFEST is titan-run's output, METRICS its --metrics file with the steps after STEP_FOLDER, TEXT the one file that it read
under the byte tokenizer, --sequential. Model, AdamW and the scheduler are loaded by torch.distributed.checkpoint with
torchtitan's keys; every loss must agree with titan-run's to 1e-5. Needs torch, no GPU.
"""
import functools
import json
import math
import sys

import torch
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)

FOLDER, MANIFEST, METRICS, TEXT = sys.argv[1:]
JOB = json.load(open(MANIFEST))
C, T, O, S = JOB["model"]["config"], JOB["training"], JOB["optimizer"], JOB["lr_scheduler"]
DIM, HD, VOCAB, SEQ, EPS = C["dim"], C["head_dim"], C["vocab_size"], T["seq_len"], C["norm_eps"]


def linear(i, o):
    return nn.Linear(i, o, bias=False)


def rope_table():
    f = 1.0 / C["rope_theta"] ** (torch.arange(0, HD, 2).float() / HD)
    if s := C["rope_scaling"]:
        wave, low, high = 2 * math.pi / f, s["low_freq_factor"], s["high_freq_factor"]
        smooth = ((s["original_max_seq_len"] / wave - low) / (high - low)).clamp(0, 1)
        f = (1 - smooth) * f / s["factor"] + smooth * f
    return torch.polar(torch.ones(SEQ, HD // 2), torch.outer(torch.arange(SEQ).float(), f))


def rotate(x, table):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table[None, :, None]).flatten(3)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        q, kv = C["num_heads"] * HD, C["num_kv_heads"] * HD
        self.wq, self.wk, self.wv, self.wo = linear(DIM, q), linear(DIM, kv), linear(DIM, kv), linear(q, DIM)

    def forward(self, x, table):
        q, k, v = (w(x).unflatten(-1, (-1, HD)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = linear(DIM, C["ffn_hidden"]), linear(C["ffn_hidden"], DIM), linear(DIM, C["ffn_hidden"])

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM, EPS), nn.RMSNorm(DIM, EPS)

    def forward(self, x, table):
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(C["num_layers"])})
        self.norm, self.lm_head = nn.RMSNorm(DIM, EPS), linear(DIM, VOCAB)

    def forward(self, tokens):
        h, table = self.tok_embeddings(tokens), rope_table()
        for block in self.layers.values():
            h = block(h, table)
        return self.lm_head(self.norm(h)).float()


def factor(total, done):
    """torchtitan's linear schedule: warm-up, flat, decay; done is the number of scheduler steps."""
    warmup = min(S["warmup_steps"], total)
    decay = total - warmup if S["decay_ratio"] is None else min(round(total * S["decay_ratio"]), total - warmup)
    flat = total + 1 - warmup - decay
    if done < warmup:
        return (done + 1) / warmup
    if done < warmup + flat:
        return 1.0
    left = 1 - (done + 1 - warmup - flat) / decay
    return S["min_lr_factor"] + (1 - S["min_lr_factor"]) * left


def load(model, opt, sched):
    """All of the folder's state, by torchtitan's keys; returns the step and the position in the data."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = {**get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, opt, options=flat),
             "lr_scheduler": sched.state_dict(), "train_state": {"step": 0, "ntokens_seen": 0}, "dataloader": {"rows": 0}}
    before = set(state)
    dcp.load(state, checkpoint_id=FOLDER)
    set_model_state_dict(model, {k: state[k] for k in before - {"optimizer", "lr_scheduler", "train_state", "dataloader"}})
    set_optimizer_state_dict(model, opt, state["optimizer"], options=flat)
    sched.load_state_dict(state["lr_scheduler"])
    return state["train_state"]["step"], state["dataloader"]["rows"]


def batch(text, row):
    """Rows row, row+1, ... of the text, in order, begun again at its end."""
    rows = len(text) // (SEQ + 1)
    at = [(row + i) % rows * (SEQ + 1) for i in range(T["global_batch_size"])]
    return torch.stack([text[a:a + SEQ + 1] for a in at]).long()


def main():
    assert JOB["data"].get("sequential") and VOCAB == 256, "the data of this script: --sequential, vocabulary 256"
    assert not C["tied"] and S["decay_type"] == "linear" and O["name"] == "AdamW"
    want = {r["step"]: r for r in map(json.loads, open(METRICS)) if "loss" in r}
    text = torch.frombuffer(bytearray(open(TEXT, "rb").read()), dtype=torch.uint8)
    model = Decoder()
    opt = torch.optim.AdamW(model.parameters(), lr=O["lr"], betas=(O["beta1"], O["beta2"]), eps=O["eps"], weight_decay=O["weight_decay"], fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, functools.partial(factor, S["total_steps"] or T["steps"]))
    step, row = load(model, opt, sched)
    worst = 0.0
    for step in range(step + 1, max(want) + 1):
        rows = batch(text, row)
        row += len(rows)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), T["max_norm"]).item()
        lr = opt.param_groups[0]["lr"]
        opt.step()
        sched.step()
        opt.zero_grad()
        ours = want[step]
        off = max(abs(loss.item() / ours["loss"] - 1), abs(norm / ours["grad_norm"] - 1), abs(lr / ours["lr"] - 1))
        worst = max(worst, off)
        print(f"step {step}: loss {loss.item():.7f} here, {ours['loss']:.7f} there; grad_norm {norm:.6f}, {ours['grad_norm']:.6f}; lr {lr:.6g}, {ours['lr']:.6g}")
    print(f"torch {torch.__version__}: {'PASS' if worst < 1e-5 else 'FAIL'}: the largest relative difference is {worst:.2g}")
    return worst >= 1e-5


if __name__ == "__main__":
    sys.exit(main())
