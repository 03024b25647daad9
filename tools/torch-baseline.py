#!/usr/bin/env python3
"""Times the pass of a Clover-35B-A3B geometry in PyTorch bf16 with random weights: what a user of the
vendor's release runs, expert products grouped. Previews of 32 rows and causal tokens without context,
launched one by one and replayed as a CUDA graph.

    python3 tools/torch-baseline.py [LAYERS]      needs a GPU with 75 GB for all 40 layers
"""
import sys
import torch
import torch.nn.functional as F

LAYERS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
H, V, E, K, I = 2048, 248320, 256, 8, 512
NH, NKV, HD, ROT = 16, 2, 256, 64
HK, HV, D, TAPS = 16, 32, 128, 4
C = 2 * HK * D + HV * D
dev, bf = "cuda", torch.bfloat16
torch.manual_seed(0)


def w(*shape):
    return torch.randn(*shape, device=dev, dtype=bf) * shape[-1] ** -0.5


def norm(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(bf) * weight


def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class Layer:
    def __init__(self, full):
        self.full, self.n1, self.n2 = full, torch.ones(H, device=dev, dtype=bf), torch.ones(H, device=dev, dtype=bf)
        if full:
            self.q, self.k, self.v, self.o = w(2 * NH * HD, H), w(NKV * HD, H), w(NKV * HD, H), w(H, NH * HD)
        else:
            self.qkv, self.z, self.ab, self.out = w(C, H), w(HV * D, H), w(2 * HV, H), w(H, HV * D)
            self.conv, self.right = w(C, 1, TAPS), w(C, TAPS - 1)
            self.ring = torch.zeros(TAPS - 1, C, device=dev, dtype=bf)
            self.state = torch.zeros(HV, D, D, device=dev)
            self.a_log, self.dt = torch.zeros(HV, device=dev), torch.zeros(HV, device=dev)
        self.router, self.shared_gate = w(E, H), w(1, H)
        self.gate_up = w(E, H, 2 * I)  # [experts, in, out], as the grouped product wants it
        self.down = w(E, I, H)
        self.s_gate_up, self.s_down = w(2 * I, H), w(H, I)

    def attention(self, x, preview):
        n = x.shape[0]
        q, gate = (x @ self.q.T).view(n, NH, 2 * HD).split(HD, -1)
        k, v = (x @ self.k.T).view(n, NKV, HD), (x @ self.v.T).view(n, NKV, HD)
        q, k = norm(q, 1.0), norm(k, 1.0)
        y = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], is_causal=not preview, enable_gqa=True
        )[0].transpose(0, 1)
        return (y * torch.sigmoid(gate)).reshape(n, NH * HD) @ self.o.T

    def gdn(self, x, preview):
        n = x.shape[0]
        u, z, (a, b) = x @ self.qkv.T, x @ self.z.T, (x @ self.ab.T).float().split(HV, -1)
        tape = torch.cat([self.ring, u])
        c = F.conv1d(tape.T[None], self.conv, groups=C)[0].T
        if preview:
            for d in range(1, TAPS):
                c = c + F.pad(u[d:], (0, 0, 0, d)) * self.right[:, d - 1]
        c = F.silu(c).float()
        q, k, v = c.split([HK * D, HK * D, HV * D], -1)
        q = unit(q.view(n, HK, D)).repeat_interleave(HV // HK, 1)
        k = unit(k.view(n, HK, D)).repeat_interleave(HV // HK, 1)
        v = v.view(n, HV, D)
        decay = torch.exp(-torch.exp(self.a_log) * F.softplus(a + self.dt))
        if preview:
            scores = torch.einsum("thd,shd->hts", q, k)
            p = torch.softmax(torch.cat([scores, torch.zeros_like(scores[..., :1])], -1), -1)
            o = torch.einsum("hts,shd->thd", p[..., :-1], v)
            o = o + p[..., -1].T[..., None] * decay[..., None] * torch.einsum("thk,hkd->thd", q * D**-0.5, self.state)
        else:
            rows = []
            for t in range(n):
                s = self.state * decay[t][:, None, None]
                delta = torch.sigmoid(b[t])[:, None] * (v[t] - torch.einsum("hk,hkd->hd", k[t], s))
                self.state.copy_(s + k[t][..., None] * delta[:, None])
                rows.append(torch.einsum("hk,hkd->hd", q[t] * D**-0.5, self.state))
            o = torch.stack(rows)
            self.ring.copy_(tape[-(TAPS - 1) :])
        o = norm(o, 1.0) * F.silu(z.view(n, HV, D))
        return o.reshape(n, HV * D).to(bf) @ self.out.T

    def moe(self, y, preview):
        n = y.shape[0]
        pi = torch.softmax((y @ self.router.T).float(), -1)
        if preview:  # the coreset: experts in the order of their mass until top_p is reached
            top = torch.topk(pi, K, -1)
            mass = torch.zeros(E, device=dev).index_add_(0, top.indices.flatten(), top.values.flatten())
            order = torch.argsort(mass, descending=True)
            before = torch.cumsum(mass[order], 0) - mass[order]
            keep = torch.zeros(E, device=dev, dtype=torch.bool).scatter_(0, order, before < 0.85 * mass.sum())
            pi = pi.masked_fill(~keep, 0.0)
        top = torch.topk(pi, K, -1)
        weight = (top.values / top.values.sum(-1, keepdim=True)).to(bf)
        flat, perm = torch.sort(top.indices.flatten())
        ends = torch.searchsorted(flat, torch.arange(E, device=dev), right=True).to(torch.int32)
        x = y[perm // K]
        g, up = torch._grouped_mm(x, self.gate_up, offs=ends).chunk(2, -1)
        out = torch._grouped_mm(F.silu(g) * up, self.down, offs=ends)
        routed = torch.zeros_like(y).index_add_(0, perm // K, out * weight.flatten()[perm, None])
        g, up = (y @ self.s_gate_up.T).chunk(2, -1)
        return routed + torch.sigmoid(y @ self.shared_gate.T) * ((F.silu(g) * up) @ self.s_down.T)


layers = [Layer(i % 4 == 3) for i in range(LAYERS)]
embed, head, n0 = w(V, H), w(V, H), torch.ones(H, device=dev, dtype=bf)


@torch.no_grad()
def run(ids, preview):
    h = embed[ids]
    for layer in layers:
        x = norm(h, layer.n1)
        h = h + (layer.attention(x, preview) if layer.full else layer.gdn(x, preview))
        h = h + layer.moe(norm(h, layer.n2), preview)
    p = torch.softmax((norm(h, n0) @ head.T).float(), -1)
    return p.max(-1)


def median(f, n=15):
    for _ in range(3):
        f()
    times = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(), f(), b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[n // 2]


print(torch.cuda.get_device_name(), torch.__version__, f"{torch.cuda.memory_allocated() / 1e9:.1f} GB, {LAYERS} layers")
for name, rows, preview in [("preview of 32 rows, random ids", 32, True), ("causal token", 1, False)]:
    ids = torch.randint(0, V, (rows,), device=dev)
    eager = median(lambda: run(ids, preview))
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run(ids, preview)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(ids, preview)
        replay = f"{median(graph.replay):.2f} ms as one CUDA graph"
    except Exception as error:  # say so instead of a number
        replay = f"no graph: {str(error).splitlines()[0]}"
    print(f"{name}: {eager:.2f} ms launched one by one, {replay}")
