"""Networks of the real classes with two levels in place of four, so that exporting them takes seconds.

The VAE halves sizes once: pictures of 32 pixels have latents of 16. Only the middle of the UNet attends to the prompt.
"""

from __future__ import annotations

from typing import Any, Final, Literal

LittleKind = Literal["sd", "inpainting", "xl"]

VOCABULARY: Final = 1000
_CLIP: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": VOCABULARY,
    "eos_token_id": VOCABULARY - 1,
    "projection_dim": 16,
}
_UNET: Final[dict[str, Any]] = {
    "sample_size": 16,
    "in_channels": 4,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D",) * 2,
    "up_block_types": ("UpBlock2D",) * 2,
    "cross_attention_dim": 32,
    "attention_head_dim": 4,
    "norm_num_groups": 4,
}
_UNETS: Final[dict[LittleKind, dict[str, Any]]] = {
    "sd": _UNET,
    "inpainting": {**_UNET, "in_channels": 9},
    "xl": {
        **_UNET,
        "cross_attention_dim": 64,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 16,
    },
}
UNET_CHANNELS: Final = {kind: int(config["in_channels"]) for kind, config in _UNETS.items()}
_VAE: Final[dict[str, Any]] = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": 4,
    "sample_size": 32,
    "mid_block_add_attention": False,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
_LIVELINESS: Final = 4
"""What the VAE's last weights are multiplied by: pictures of random weights are grey otherwise."""
_FAR: Final = 2.0
"""A cosine that no picture reaches."""
PREPROCESSING: Final[dict[str, Any]] = {
    "crop_size": {"height": 28, "width": 28},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 28},
}


def make_networks(kind: LittleKind) -> dict[str, Any]:
    """Return torch networks with seeded random weights, by the name of their folder.

    The safety checker, of `sd` alone, flags nothing: its thresholds are out of reach.
    """
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = {
            "text_encoder": CLIPTextModel(CLIPTextConfig(**_CLIP)),
            "unet": UNet2DConditionModel(**_UNETS[kind]),
            "vae": AutoencoderKL(**_VAE, scaling_factor=0.13025 if kind == "xl" else 0.18215),
        }
        if kind == "xl":
            networks["text_encoder_2"] = CLIPTextModelWithProjection(CLIPTextConfig(**_CLIP))
        if kind == "sd":
            vision = {**_CLIP, "image_size": 28, "patch_size": 14}
            towers = CLIPConfig(text_config=_CLIP, vision_config=vision, projection_dim=16)
            networks["safety_checker"] = StableDiffusionSafetyChecker(towers)
        with torch.no_grad():
            for network in networks.values():
                network.eval()
                for parameter in network.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(torch.randn_like(parameter), alpha=0.1)
            networks["vae"].decoder.conv_out.weight *= _LIVELINESS
            if kind == "sd":
                networks["safety_checker"].concept_embeds_weights.fill_(_FAR)
                networks["safety_checker"].special_care_embeds_weights.fill_(_FAR)
    return networks
