"""What bench/modules.py builds: modules of public packages in small configurations.

A row is text: what is imported, what the constructor makes, what forward says and what it is given.
Weights are random, nothing is downloaded; sizes are small, so that a judging takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """package: which one has the module.  imports: `from {package}{imports}`.  members: lines of
    the constructor.  forward: its arguments, an arrow, and what it returns.  inputs: the list that
    `get_inputs` returns.
    """

    package: str
    imports: str
    members: str
    forward: str
    inputs: str

    def problem(self, mode: str) -> str:
        """The text of the problem file; mode: eval or train."""
        arguments, returned = self.forward.split(" -> ")
        indented = "\n".join("        " + line for line in self.members.strip().splitlines())
        return TEMPLATE.format(
            mode=mode,
            package=self.package,
            imports=self.imports,
            members=indented,
            arguments=arguments,
            returned=returned,
            inputs=self.inputs,
        )


TEMPLATE = '''\
"""A module of {package} in a small configuration, in {mode} mode."""

import torch
from {package}{imports}
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{members}
        self.{mode}()

    def forward(self, {arguments}):
        return {returned}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
'''

IDS = "[torch.randint(97, (2, 12))]"
HIDDEN = "[torch.randn(2, 12, 32)]"
IMAGE = "[torch.randn(2, 3, 32, 32)]"
MAP = "[torch.randn(2, 32, 8, 8)]"
DECODER = (
    "vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, "
    "num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64"
)
ENCODER = (
    "vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, "
    "intermediate_size=64, max_position_embeddings=64"
)
ATTENDED = "torch.ones(2, 12, dtype=torch.long)"


def _decoder_part(part: str, forward: str) -> Row:
    """A part of a Llama decoder, with the rotary embedding that the model makes once for all."""
    return Row(
        "transformers",
        f".models.llama.modeling_llama import LlamaConfig, {part}, LlamaRotaryEmbedding",
        f"config = LlamaConfig({DECODER}, attn_implementation='sdpa')\n"
        f"self.part = {part}(config, 0)\nself.rotary = LlamaRotaryEmbedding(config)",
        f"x -> {forward}",
        HIDDEN,
    )


_ROTARY = "self.rotary(x, torch.arange(x.shape[1], device=x.device)[None])"


def _language(model: str, config: str, settings: str) -> Row:
    """A whole language model: tokens in, logits out."""
    return Row(
        "transformers",
        f" import {config}, {model}",
        f"self.inner = {model}({config}({settings}))",
        "ids -> self.inner(ids, use_cache=False).logits",
        IDS,
    )


def _mixture(experts: str) -> Row:
    """The sparse block of Mixtral; experts: which of the package's own ways to compute them."""
    return Row(
        "transformers",
        ".models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock",
        "config = MixtralConfig(hidden_size=32, intermediate_size=48, num_local_experts=4, "
        f"experts_implementation='{experts}')\n"
        "self.part = MixtralSparseMoeBlock(config)\n"
        "for parameter in self.part.parameters():\n"
        "    nn.init.normal_(parameter, std=0.1)",
        "x -> self.part(x)",
        HIDDEN,
    )


def _timm(name: str, settings: str = "", inputs: str = IMAGE) -> Row:
    return Row(
        "timm",
        " import create_model",
        f"self.inner = create_model('{name}', pretrained=False, num_classes=10{settings})",
        "x -> self.inner(x)",
        inputs,
    )


def _diffusers(imports: str, members: str, forward: str, inputs: str) -> Row:
    return Row("diffusers", imports, members, forward, inputs)


TRANSFORMERS: Mapping[str, Row] = {
    "llama_layer": _decoder_part(
        "LlamaDecoderLayer", f"self.part(x, position_embeddings={_ROTARY})"
    ),
    "llama_attention": _decoder_part(
        "LlamaAttention", f"self.part(x, position_embeddings={_ROTARY}, attention_mask=None)[0]"
    ),
    "llama_mlp": Row(
        "transformers",
        ".models.llama.modeling_llama import LlamaConfig, LlamaMLP",
        f"self.part = LlamaMLP(LlamaConfig({DECODER}))",
        "x -> self.part(x)",
        HIDDEN,
    ),
    "llama_rms_norm": Row(
        "transformers",
        ".models.llama.modeling_llama import LlamaRMSNorm",
        "self.part = LlamaRMSNorm(32)",
        "x -> self.part(x)",
        HIDDEN,
    ),
    "llama_lm_tied": _language(
        "LlamaForCausalLM", "LlamaConfig", f"{DECODER}, tie_word_embeddings=True"
    ),
    "mistral_lm_window": _language(
        "MistralForCausalLM", "MistralConfig", f"{DECODER}, sliding_window=4"
    ),
    "qwen3_lm": _language("Qwen3ForCausalLM", "Qwen3Config", f"{DECODER}, head_dim=8"),
    "gemma2_lm": _language(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        f"{DECODER}, head_dim=8, sliding_window=4, query_pre_attn_scalar=8",
    ),
    "mixtral_moe_block": _mixture("eager"),  # its experts stand in a loop over those that are hit
    "mixtral_moe_batched": _mixture("batched_mm"),
    "mixtral_lm": _language(
        "MixtralForCausalLM",
        "MixtralConfig",
        f"{DECODER}, num_local_experts=4, experts_implementation='eager'",
    ),
    "gpt2_lm_tied": _language(
        "GPT2LMHeadModel",
        "GPT2Config",
        "vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4",
    ),
    "gpt2_block": Row(
        "transformers",
        ".models.gpt2.modeling_gpt2 import GPT2Block, GPT2Config",
        "config = GPT2Config(n_embd=32, n_head=4, n_positions=64, attn_implementation='eager')\n"
        "self.part = GPT2Block(config, layer_idx=0)",
        "x -> self.part(x)",
        HIDDEN,
    ),
    "gpt_neox_lm": _language("GPTNeoXForCausalLM", "GPTNeoXConfig", f"{ENCODER}, rotary_pct=0.25"),
    "bert_model": Row(
        "transformers",
        " import BertConfig, BertModel",
        f"self.inner = BertModel(BertConfig({ENCODER}))",
        "ids, attended -> self.inner(ids, attention_mask=attended)",
        f"[torch.randint(97, (2, 12)), {ATTENDED}]",
    ),
    "bert_layer": Row(
        "transformers",
        ".models.bert.modeling_bert import BertConfig, BertLayer",
        f"self.part = BertLayer(BertConfig({ENCODER}, attn_implementation='sdpa'))",
        "x -> self.part(x)",
        HIDDEN,
    ),
    "distilbert_masked_lm": Row(
        "transformers",
        " import DistilBertConfig, DistilBertForMaskedLM",
        "self.inner = DistilBertForMaskedLM(DistilBertConfig("
        "vocab_size=97, dim=32, n_layers=2, n_heads=4, hidden_dim=64))",
        "ids -> self.inner(ids).logits",
        IDS,
    ),
    "t5_lm": Row(
        "transformers",
        " import T5Config, T5ForConditionalGeneration",
        "self.inner = T5ForConditionalGeneration(T5Config("
        "vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4))",
        "ids, decoded -> self.inner("
        "input_ids=ids, decoder_input_ids=decoded, use_cache=False).logits",
        "[torch.randint(97, (2, 12)), torch.randint(97, (2, 7))]",
    ),
    "t5_encoder_block": Row(
        "transformers",
        ".models.t5.modeling_t5 import T5Block, T5Config",
        "config = T5Config(d_model=32, d_kv=8, d_ff=64, num_heads=4, feed_forward_proj="
        "'gated-gelu')\nself.part = T5Block(config, has_relative_attention_bias=True, layer_idx=0)",
        "x -> self.part(x)[0]",
        HIDDEN,
    ),
    "vit_model": Row(
        "transformers",
        " import ViTConfig, ViTModel",
        "self.inner = ViTModel(ViTConfig(hidden_size=32, num_hidden_layers=2, "
        "num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8))",
        "x -> self.inner(x)",
        IMAGE,
    ),
    "clip_text_model": Row(
        "transformers",
        " import CLIPTextConfig, CLIPTextModel",
        f"self.inner = CLIPTextModel(CLIPTextConfig({ENCODER}, eos_token_id=96))",
        "ids -> self.inner(ids).last_hidden_state",
        IDS,
    ),
    "whisper_encoder": Row(
        "transformers",
        ".models.whisper.modeling_whisper import WhisperConfig, WhisperEncoder",
        "self.inner = WhisperEncoder(WhisperConfig(num_mel_bins=16, d_model=32, "
        "encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, "
        "max_source_positions=20))",
        "x -> self.inner(x).last_hidden_state",
        "[torch.randn(2, 16, 40)]",
    ),
    "mamba_lm": _language(
        "MambaForCausalLM",
        "MambaConfig",
        "vocab_size=97, hidden_size=32, state_size=8, num_hidden_layers=1",
    ),
}

TIMM: Mapping[str, Row] = {
    "timm_resnet": Row(
        "timm",
        ".models.resnet import BasicBlock, ResNet",
        "self.inner = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, "
        "channels=(8, 16, 24, 32), stem_width=8)",
        "x -> self.inner(x)",
        IMAGE,
    ),
    "timm_convnext": Row(
        "timm",
        ".models.convnext import ConvNeXt",
        "self.inner = ConvNeXt(num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))",
        "x -> self.inner(x)",
        "[torch.randn(2, 3, 64, 64)]",
    ),
    "timm_efficientnet": _timm("test_efficientnet"),
    "timm_mobilenetv3": _timm("mobilenetv3_small_050"),
    "timm_vit": Row(
        "timm",
        ".models.vision_transformer import VisionTransformer",
        "self.inner = VisionTransformer(img_size=32, patch_size=8, num_classes=10, "
        "embed_dim=32, depth=2, num_heads=4)",
        "x -> self.inner(x)",
        IMAGE,
    ),
    "timm_swin": Row(
        "timm",
        ".models.swin_transformer import SwinTransformer",
        "self.inner = SwinTransformer(img_size=32, patch_size=2, num_classes=10, "
        "embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4)",
        "x -> self.inner(x)",
        IMAGE,
    ),
    "timm_mixer": Row(
        "timm",
        ".models.mlp_mixer import MlpMixer",
        "self.inner = MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, "
        "embed_dim=32)",
        "x -> self.inner(x)",
        IMAGE,
    ),
    "timm_nfnet": _timm("test_nfnet"),
    "timm_squeeze_excite": Row(
        "timm",
        ".layers import SEModule",
        "self.part = SEModule(32, rd_ratio=0.25)",
        "x -> self.part(x)",
        MAP,
    ),
}

DIFFUSERS: Mapping[str, Row] = {
    "diffusers_resnet_block": _diffusers(
        ".models.resnet import ResnetBlock2D",
        "self.part = ResnetBlock2D(in_channels=32, out_channels=16, temb_channels=24, groups=8)",
        "x, time -> self.part(x, time)",
        "[torch.randn(2, 32, 8, 8), torch.randn(2, 24)]",
    ),
    "diffusers_attention": _diffusers(
        ".models.attention_processor import Attention",
        "self.part = Attention(query_dim=32, cross_attention_dim=24, heads=4, dim_head=8)",
        "x, context -> self.part(x, encoder_hidden_states=context)",
        "[torch.randn(2, 12, 32), torch.randn(2, 7, 24)]",
    ),
    "diffusers_transformer_block": _diffusers(
        ".models.attention import BasicTransformerBlock",
        "self.part = BasicTransformerBlock(32, 4, 8, cross_attention_dim=24)",
        "x, context -> self.part(x, encoder_hidden_states=context)",
        "[torch.randn(2, 12, 32), torch.randn(2, 7, 24)]",
    ),
    "diffusers_joint_block": _diffusers(
        ".models.attention import JointTransformerBlock",
        "self.part = JointTransformerBlock(32, 4, 8)",
        "x, context, time -> self.part(x, context, time)",
        "[torch.randn(2, 12, 32), torch.randn(2, 7, 32), torch.randn(2, 32)]",
    ),
    "diffusers_timestep": _diffusers(
        ".models.embeddings import TimestepEmbedding, Timesteps",
        "self.project = Timesteps(32, flip_sin_to_cos=True, downscale_freq_shift=0)\n"
        "self.embed = TimestepEmbedding(32, 64)",
        "steps -> self.embed(self.project(steps))",
        "[torch.randint(1000, (4,))]",
    ),
    "diffusers_updown": _diffusers(
        ".models.resnet import Downsample2D, Upsample2D",
        "self.down = Downsample2D(32, use_conv=True)\nself.up = Upsample2D(32, use_conv=True)",
        "x -> self.up(self.down(x))",
        MAP,
    ),
    "diffusers_autoencoder": _diffusers(
        " import AutoencoderKL",
        "self.inner = AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, "
        "down_block_types=('DownEncoderBlock2D', 'DownEncoderBlock2D'), "
        "up_block_types=('UpDecoderBlock2D', 'UpDecoderBlock2D'))",
        "x -> self.inner(x).sample",
        "[torch.randn(2, 3, 16, 16)]",
    ),
    "diffusers_unet": _diffusers(
        " import UNet2DModel",
        "self.inner = UNet2DModel(sample_size=16, block_out_channels=(16, 32), "
        "layers_per_block=1, norm_num_groups=8, attention_head_dim=8, "
        "down_block_types=('DownBlock2D', 'AttnDownBlock2D'), "
        "up_block_types=('AttnUpBlock2D', 'UpBlock2D'))",
        "x, steps -> self.inner(x, steps).sample",
        "[torch.randn(2, 3, 16, 16), torch.randint(1000, (2,))]",
    ),
    "diffusers_unet_text": _diffusers(
        " import UNet2DConditionModel",
        "self.inner = UNet2DConditionModel(sample_size=8, block_out_channels=(16, 32), "
        "layers_per_block=1, norm_num_groups=8, attention_head_dim=4, cross_attention_dim=24, "
        "down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), "
        "up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'))",
        "x, steps, context -> self.inner(x, steps, context).sample",
        "[torch.randn(2, 4, 8, 8), torch.randint(1000, (2,)), torch.randn(2, 7, 24)]",
    ),
    "diffusers_dit": _diffusers(
        " import DiTTransformer2DModel",
        "self.inner = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=8, "
        "num_layers=1, sample_size=8, num_embeds_ada_norm=10, norm_num_groups=8)",
        "x, steps, labels -> self.inner(x, steps, labels).sample",
        "[torch.randn(2, 4, 8, 8), torch.randint(1000, (2,)), torch.randint(10, (2,))]",
    ),
}

MODULES: Mapping[str, Row] = {**TRANSFORMERS, **TIMM, **DIFFUSERS}
