"""The list of all fields of A1111's bodies and of all its options: its default of each, and what becomes of it here.

Names and defaults are those of version 1.10.1: `modules/api/models.py`, `modules/processing.py`,
`modules/shared_options.py`, and the extensions that come with it. `docs/a1111-fields.md` is made of this list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from olivelike._untrusted import JsonView

State = Literal["done", "no effect", "refused"]
Situation = Literal["", "noise", "ancestral", "DDIM", "UniPC", "Beta", "picture", "mask", "hires"]
_MOST_NAMED: Final = 20
_MOST_CHARACTERS: Final = 60


@dataclass(frozen=True)
class Field:
    """Treatment of a field or an option of A1111's here."""

    default: Any
    """A1111's."""
    state: State
    """`refused` is so with values that would make another picture there."""
    note: str = ""
    also: tuple[Any, ...] = ()
    """Other values that mean what is done here."""
    acts: Situation = ""
    """The only situation, of `SITUATIONS`, in which it changes a picture there; any by default."""

    def is_plain(self, value: Any) -> bool:
        """Whether a value asks for nothing but what is done here."""
        return any(_same(value, one) for one in (self.default, *self.also))


SITUATIONS: Final[Mapping[Situation, str]] = {
    "noise": "with ancestral and SDE samplers",
    "ancestral": "with ancestral samplers",
    "DDIM": "with DDIM",
    "UniPC": "with UniPC",
    "Beta": "with the schedule type Beta",
    "picture": "in img2img",
    "mask": "with a mask",
    "hires": "with `enable_hr`",
}
"""Words for the situations in which a field acts."""


def asked_for(given: JsonView, fields: Mapping[str, Field], here: Collection[str]) -> Iterator[str]:
    """Return the names of what is given, is refused, and would change the picture.

    Args:
        given: Values as they came.
        fields: The list that they are on.
        here: Situations of `SITUATIONS` that the request is in.
    """
    for name, value in given.items():
        field = fields.get(name)
        if field and field.state == "refused" and (not field.acts or field.acts in here) and not field.is_plain(value):
            yield name


def idle(given: JsonView, fields: Mapping[str, Field]) -> Iterator[str]:
    """Return the names of what is given and does nothing here: unlisted, or another value than A1111's default."""
    for name, value in given.items():
        field = fields.get(name)
        if value is not None and (field is None or (field.state == "no effect" and not field.is_plain(value))):
            yield name


def in_one(names: Collection[str], *, characters: int = _MOST_CHARACTERS) -> str:
    """Return names as one text of bounded length, `characters` of each; they come from strangers."""
    short = [name if len(name) <= characters else f"{name[:characters]}…" for name in names]
    more = len(short) - _MOST_NAMED
    return ", ".join(short[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _same(value: Any, default: Any) -> bool:
    """Whether two values mean the same: null is any default, numbers may be text, truth 0 or 1."""
    if value is None:
        return True
    if default is None or isinstance(default, bool):
        text = str(value).strip().lower() if isinstance(value, (str, bool, int, float)) else value
        false = text in ("", "0", "0.0", "false", "no", "off", "none") or not value
        return false is not default if isinstance(default, bool) else false
    if isinstance(default, (int, float)):
        try:
            return float(value) == default
        except (TypeError, ValueError, OverflowError):
            return False
    if isinstance(value, str) and isinstance(default, str):
        return value.strip().lower() == default.strip().lower()
    return bool(value == default)


def _fields(state: State, note: str, names: Mapping[str, object], **more: Any) -> dict[str, Field]:
    return {name: Field(default, state, note, **more) for name, default in names.items()}


def _done(note: str = "", /, **names: Any) -> dict[str, Field]:
    return _fields("done", note, names)


def _idle(note: str, /, also: tuple[Any, ...] = (), **names: Any) -> dict[str, Field]:
    return _fields("no effect", note, names, also=also)


def _refused(note: str, acts: Situation = "", also: tuple[Any, ...] = (), /, **names: Any) -> dict[str, Field]:
    return _fields("refused", note, names, acts=acts, also=also)


_DRAWING: Final = {
    **_done(
        prompt="", negative_prompt="", seed=-1, subseed=-1, subseed_strength=0, batch_size=1, n_iter=1,
        override_settings=None, override_settings_restore_afterwards=True, send_images=True, save_images=False,
    ),
    **_done("A1111's names and aliases; without one the folder's own", sampler_name=None, sampler_index="Euler"),
    **_done("name or label", scheduler=None),
    **_done("1 to `--max-steps`; by default the family's, if it is no Stable Diffusion 1.x to XL", steps=50),
    **_done("1 and more; less is refused; by default as `steps`", cfg_scale=7.0),
    **_done("the folder's own where it is left out; to the nearest multiple of 8", width=512, height=512),
    **_done("DDIM: 0 to 1; ancestral and SDE samplers: 1, others are refused; no sampler else has it", eta=None),
    **_done("`ControlNet`; other scripts are refused", alwayson_scripts={}),
    **_done("`Prompt matrix`; others are refused", script_name=None),
    **_done("of the prompt matrix, in the order of its form; margins are not", script_args=[]),
    **_done("nothing there either: `save_images` decides", do_not_save_samples=False, do_not_save_grid=False),
    **_done("names of the server's styles", styles=None),
    **_refused("faces are not restored", restore_faces=None),
    **_refused("pictures that tile are not drawn", tiling=None),
    **_refused("", "", (0,), seed_resize_from_w=-1, seed_resize_from_h=-1),
    **_refused("", s_churn=None, s_min_uncond=None),
    **_refused("", "", (1,), s_noise=None),
    **_idle("of `s_churn`", s_tmin=None, s_tmax=None),
    **_refused("", refiner_checkpoint=None),
    **_idle("of `refiner_checkpoint`", refiner_switch_at=None),
    **_refused("take the tags out of the prompts", disable_extra_networks=False),
    **_refused("", firstpass_image=None),
    **_refused("send its values as fields", infotext=None),
    **_idle("notes to the picture", comments=None),
    **_idle("`progress` goes by client", force_task_id=None),
}  # fmt: skip
TEXT_TO_IMAGE: Final[Mapping[str, Field]] = {
    **_DRAWING,
    **_done(
        enable_hr=False, hr_scale=2.0, hr_resize_x=0, hr_resize_y=0, hr_checkpoint_name=None, hr_sampler_name=None,
        hr_scheduler=None, hr_prompt="", hr_negative_prompt="",
    ),
    **_done("0 is `steps`", hr_second_pass_steps=0),
    **_done("of the second pass; 0 runs one step", denoising_strength=None),
    **_done("`Latent`, `Lanczos`, `Nearest`, files of `--upscaler-dir`", hr_upscaler=None),
    **_refused("give `width` and `height` of the first pass", firstphase_width=0, firstphase_height=0),
}  # fmt: skip
IMAGE_TO_IMAGE: Final[Mapping[str, Field]] = {
    **_DRAWING,
    **_done("0 runs one step", denoising_strength=0.75),
    **_done("as base64; several are a batch of as many, `batch_size` at most", init_images=None),
    **_done("0, 1, 2; 3 is refused", resize_mode=0),
    **_done(mask=None, inpaint_full_res=True, inpaint_full_res_padding=0, inpainting_fill=0, inpainting_mask_invert=0),
    **_done(mask_blur=None, include_init_images=False),
    **_done("where they are the same and `mask_blur` is left out", mask_blur_x=4, mask_blur_y=4),
    **_refused("masks are white or not", "mask", mask_round=True),
    **_refused("", latent_mask=None),
    **_refused("", "", (1,), initial_noise_multiplier=None),
    **_idle("of models that follow instructions", image_cfg_scale=None),
}
EXTRAS: Final[Mapping[str, Field]] = {
    **_done(
        resize_mode=0, upscaling_resize=2, upscaling_resize_w=512, upscaling_resize_h=512, upscaling_crop=True,
        extras_upscaler_2_visibility=0, image="",
    ),
    **_done("`None`, `Lanczos`, `Nearest`, files of `--upscaler-dir`", upscaler_1="None", upscaler_2="None"),
    **_done("nothing there either", show_extras_results=True),
    **_refused("faces are not restored", gfpgan_visibility=0, codeformer_visibility=0),
    **_idle("of restored faces", codeformer_weight=0, upscale_first=False),
}  # fmt: skip
BATCH_EXTRAS: Final[Mapping[str, Field]] = {
    **{name: field for name, field in EXTRAS.items() if name != "image"}, **_done(imageList=None),
}  # fmt: skip
UNIT: Final[Mapping[str, Field]] = {
    **_done(
        enabled=True, module="none", model="None", weight=1.0, guidance_start=0.0, guidance_end=1.0, guessmode=False,
    ),
    **_done("base64, or a map with it as `image`", image=None, input_image=None),
    **_done("of the module", threshold_a=-1, threshold_b=-1),
    **_done("`Balanced`, `ControlNet is more important`; one for all units", control_mode="Balanced"),
    **_refused("", mask=None, mask_image=None, effective_region_mask=None, advanced_weighting=None),
    **_refused("", batch_images=None, ipadapter_input=None, use_preview_as_input=False, invert_image=False),
    **_refused("both passes are led", "hires", (0, "HiResFixOption.BOTH"), hr_option="Both"),
    **_idle(
        "control pictures are cropped to the size's shape", resize_mode="Crop and Resize",
        also=(1, "ResizeMode.INNER_FIT", "Scale to Fit (Inner Fit)"),
    ),
    **_idle("modules work at the picture's own size", processor_res=-1, pixel_perfect=False),
    **_idle("pictures are sent without control pictures", save_detected_map=True),
    **_idle("memory is the server's", low_vram=False, lowvram=False),
    **_idle("the older `guidance_end`", guidance=1.0),
    **_idle("of networks that are not here", union_control_type="Unknown", pulid_mode="Fidelity"),
    **_idle("of masks and batches", inpaint_crop_input_image=False, input_mode="simple"),
}  # fmt: skip
"""Of a ControlNet unit, by the extension's `external_code.py` and what `webuiapi` sends."""
PNG_INFO: Final[Mapping[str, Field]] = _done(image=None)
PROGRESS: Final[Mapping[str, Field]] = _done(skip_current_image=False)
INTERROGATE: Final[Mapping[str, Field]] = _refused("pictures are not described here", image="", model="clip")

_OLDER: Final = {
    **_refused("", k_sched_type="Automatic"),
    **_refused("brackets are weights", enable_emphasis=True),
    **_refused("", dont_fix_second_order_samplers_schedule=False),
}
"""Options that 1.10.1 has no more and presets still name."""
OPTIONS: Final[Mapping[str, Field]] = {
    **_done("a name, title, file name or hash", sd_model_checkpoint=None),
    **_done("goes with `sd_model_checkpoint`", sd_checkpoint_hash=""),
    **_done("1 is none; at most as many as the encoder has layers", CLIP_stop_at_last_layers=1),
    **_done("png, jpg, webp", samples_format="png"),
    **_refused("brackets are weights", emphasis="Original"),
    **_done("where `eta` is left out", eta_ddim=0.0),
    **_refused("", "noise", eta_ancestral=1.0),
    **_refused("", "ancestral", eta_noise_seed_delta=0),
    **_refused("", "DDIM", ddim_discretize="uniform"),
    **_refused("noise is the CPU's; that of a GPU differs by card", "", ("CPU",), randn_source="GPU"),
    **_refused("the folder's own; `convert --vae` takes another", "", ("None",), sd_vae="Automatic"),
    **_refused("the folder's own", "", ("None",), sd_unet="Automatic"),
    **_refused("", sd_vae_encode_method="Full", sd_vae_decode_method="Full"),
    **_refused("", enable_quantization=False, enable_batch_seeds=True, comma_padding_backtrack=20),
    **_refused("", sdxl_clip_l_skip=False, sdxl_crop_top=0, sdxl_crop_left=0),
    **_refused("pictures that tile are not drawn", tiling=False),
    **_refused("faces are not restored", face_restoration=False),
    **_refused("name it in the prompt", sd_lora="None", sd_hypernetwork="None"),
    **_refused("give each tag its weight", extra_networks_default_multiplier=1.0),
    **_refused("", "mask", inpainting_mask_weight=1.0, overlay_inpaint=True),
    **_refused("", "picture", initial_noise_multiplier=1.0, img2img_fix_steps=False, img2img_color_correction=False),
    **_refused("", "picture", img2img_background_color="#ffffff"),
    **_refused("", img2img_extra_noise=0.0),
    **_refused("", "picture", ("Lanczos",), upscaler_for_img2img=None),
    **_refused("", s_churn=0.0, s_noise=1.0, s_min_uncond=0.0, skip_early_cond=0.0),
    **_refused("", sigma_min=0.0, sigma_max=0.0, rho=0.0, sd_noise_schedule="Default", sgm_noise_multiplier=False),
    **_refused("", always_discard_next_to_last_sigma=False, use_downcasted_alpha_bar=False),
    **_refused("", "UniPC", uni_pc_variant="bh1", uni_pc_skip_type="time_uniform", uni_pc_order=3),
    **_refused("", "UniPC", uni_pc_lower_order_final=True),
    **_refused("", "Beta", beta_dist_alpha=0.6, beta_dist_beta=0.6),
    **_refused("", use_old_emphasis_implementation=False, use_old_karras_scheduler_sigmas=False),
    **_refused("", use_old_scheduling=False),
    **_refused("", "noise", no_dpmpp_sde_batch_determinism=False),
    **_refused("", "hires", use_old_hires_fix_width_height=False, hires_fix_use_firstpass_conds=False),
    **_refused("", token_merging_ratio=0.0, pad_cond_uncond=False, pad_cond_uncond_v0=False),
    **_refused("", "picture", token_merging_ratio_img2img=0.0),
    **_refused("", "hires", token_merging_ratio_hr=0.0, hypertile_enable_unet_secondpass=False),
    **_refused("", hypertile_enable_unet=False, hypertile_enable_vae=False),
    **_refused("", postprocessing_enable_in_main_ui=[]),
    **_idle("`#` is text like any other", enable_prompt_comments=True),
    **_idle("of what is refused or not here", s_tmin=0.0, s_tmax=0.0, s_min_uncond_all=False, sd3_enable_t5=False),
    **_idle(
        "of what is refused or not here",
        hires_fix_refiner_pass="second pass",  # noqa: S106
        refiner_switch_by_sample_steps=False,
        sdxl_refiner_low_aesthetic_score=2.5, sdxl_refiner_high_aesthetic_score=6.0,
        face_restoration_model="CodeFormer", code_former_weight=0.5, face_restoration_unload=False,
        hypertile_explanation=None, hypertile_max_depth_unet=3, hypertile_max_tile_unet=256,
        hypertile_swap_size_unet=3, hypertile_max_depth_vae=3, hypertile_max_tile_vae=128, hypertile_swap_size_vae=3,
        ESRGAN_tile=192, ESRGAN_tile_overlap=8, realesrgan_enabled_models=["R-ESRGAN 4x+", "R-ESRGAN 4x+ Anime6B"],
        dat_enabled_models=["DAT x2", "DAT x3", "DAT x4"], DAT_tile=192, DAT_tile_overlap=8, ldsr_steps=100,
        ldsr_cached=False, SCUNET_tile=256, SCUNET_tile_overlap=8, SWIN_tile=192, SWIN_tile_overlap=8,
        SWIN_torch_compile=False, set_scale_by_when_changing_upscaler=False, upscaling_max_images_in_cache=5,
        postprocessing_disable_in_extras=[], postprocessing_operation_order=[],
        postprocessing_existing_caption_action="Ignore",
        interrogate_keep_models_in_memory=False, interrogate_return_ranks=False, interrogate_clip_num_beams=1,
        interrogate_clip_min_length=24, interrogate_clip_max_length=48, interrogate_clip_dict_limit=1500,
        interrogate_clip_skip_categories=[], interrogate_deepbooru_score_threshold=0.5, deepbooru_sort_alpha=True,
        deepbooru_use_spaces=True, deepbooru_escape=True, deepbooru_filter_tags="",
    ),
    **_idle(
        "precision, speed and memory are the folder's and the server's",
        sd_checkpoints_limit=1, sd_checkpoints_keep_in_cpu=True, sd_checkpoint_cache=0, upcast_attn=False,
        sd_vae_explanation=None, sd_vae_checkpoint_cache=0, sd_vae_overrides_per_model_preferences=True,
        auto_vae_precision_bfloat16=False, auto_vae_precision=True, cross_attention_optimization="Automatic",
        persistent_cond_cache=True, batch_cond_uncond=True, fp8_storage="Disable", cache_fp16_weight=False,
        auto_backcompat=True, lora_functional=False, lora_in_memory_limit=0, memmon_poll_rate=8,
        disable_mmap_load_safetensors=False,
    ),
    **_idle(
        "files are the server's, pictures are sent without grids and masks",
        samples_save=True, samples_filename_pattern="", save_images_add_number=True,
        save_images_replace_action="Replace", grid_save=True, grid_format="png", grid_extended_filename=False,
        grid_only_if_multiple=True, grid_prevent_empty_spots=False, grid_zip_filename_pattern="", n_rows=-1, font="",
        grid_text_active_color="#000000", grid_text_inactive_color="#999999", grid_background_color="#ffffff",
        save_images_before_face_restoration=False, save_images_before_highres_fix=False,
        save_images_before_color_correction=False, save_mask=False, save_mask_composite=False, jpeg_quality=80,
        webp_lossless=False, export_for_4chan=True, img_downscale_threshold=4.0, target_side_length=4000,
        img_max_size_mp=200, use_original_name_batch=True, use_upscaler_name_as_suffix=False, save_selected_only=True,
        save_write_log_csv=True, save_init_img=False, temp_dir="", clean_temp_dir_at_start=False,
        save_incomplete_images=False, outdir_samples="", outdir_txt2img_samples="outputs/txt2img-images",
        outdir_img2img_samples="outputs/img2img-images", outdir_extras_samples="outputs/extras-images",
        outdir_grids="", outdir_txt2img_grids="outputs/txt2img-grids", outdir_img2img_grids="outputs/img2img-grids",
        outdir_save="log/images", outdir_init_images="outputs/init-images", save_to_dirs=True,
        grid_save_to_dirs=True, use_save_to_dirs_for_ui=False, directories_filename_pattern="[date]",
        directories_max_prompt_words=8, return_grid=True, return_mask=False, return_mask_composite=False,
        enable_pnginfo=True, save_txt=False, infotext_explanation=None, add_model_name_to_info=True,
        add_model_hash_to_info=True, add_vae_name_to_info=True, add_vae_hash_to_info=True,
        add_user_name_to_info=False, add_version_to_infotext=True, textual_inversion_add_hashes_to_infotext=True,
        lora_add_hashes_to_infotext=True, lora_bundled_ti_to_infotext=True,
    ),
    **_idle(
        "of A1111's own page",
        notification_audio=True, notification_volume=100, img2img_editor_height=720,
        img2img_sketch_default_brush_color="#ffffff", img2img_inpaint_mask_brush_color="#ffffff",
        img2img_inpaint_sketch_default_brush_color="#ffffff", img2img_batch_show_results_limit=32,
        extra_networks_show_hidden_directories=True, extra_networks_dir_button_function=False,
        extra_networks_hidden_models="When searched", extra_networks_card_width=0, extra_networks_card_height=0,
        extra_networks_card_text_scale=1.0, extra_networks_card_show_desc=True,
        extra_networks_card_description_is_html=False, extra_networks_card_order_field="Path",
        extra_networks_card_order="Ascending", extra_networks_tree_view_style="Dirs",
        extra_networks_tree_view_default_enabled=True, extra_networks_tree_view_default_width=180,
        extra_networks_add_text_separator=" ", ui_extra_networks_tab_reorder="",
        textual_inversion_print_at_load=False, lora_preferred_name="Alias from file", lora_show_all=False,
        lora_hide_unknown_for_versions=[], lora_not_found_warning_console=False, lora_not_found_gradio_warning=False,
        keyedit_precision_attention=0.1, keyedit_precision_extra=0.05, keyedit_delimiters=".,\\/!?%^*;:{}=`~() ",
        keyedit_delimiters_whitespace=["Tab", "Carriage Return", "Line Feed"], keyedit_move=True,
        disable_token_counters=False, include_styles_into_token_counters=True, do_not_show_images=False,
        js_modal_lightbox=True, js_modal_lightbox_initially_zoomed=True, js_modal_lightbox_gamepad=False,
        js_modal_lightbox_gamepad_repeat=250, sd_webui_modal_lightbox_icon_opacity=1,
        sd_webui_modal_lightbox_toolbar_opacity=0.9, gallery_height="", open_dir_button_choice="Subdirectory",
        compact_prompt_box=False, samplers_in_dropdown=True, dimensions_and_batch_together=True,
        sd_checkpoint_dropdown_use_short=False, hires_fix_show_sampler=False, hires_fix_show_prompts=False,
        txt2img_settings_accordion=False, img2img_settings_accordion=False, interrupt_after_current=True,
        localization="None", quicksettings_list=["sd_model_checkpoint"], ui_tab_order=[], hidden_tabs=[],
        ui_reorder_list=[], gradio_theme="Default", gradio_themes_cache=True, show_progress_in_title=True,
        send_seed=True, send_size=True, enable_reloading_ui_scripts=False, disable_weights_auto_swap=True,
        infotext_skip_pasting=[], infotext_styles="Apply if any", show_progressbar=True, live_previews_enable=True,
        live_previews_image_format="png", show_progress_grid=True, show_progress_every_n_steps=10,
        show_progress_type="Approx NN", live_preview_allow_lowvram_full=False, live_preview_content="Prompt",
        live_preview_refresh_period=1000, live_preview_fast_interrupt=False, js_live_preview_in_modal_lightbox=False,
        prevent_screen_sleep_during_generation=True, hide_samplers=[], settings_in_ui=None,
        extra_options_txt2img=[], extra_options_img2img=[], extra_options_cols=1, extra_options_accordion=False,
        canvas_hotkey_zoom="Alt", canvas_hotkey_adjust="Ctrl", canvas_hotkey_shrink_brush="Q",
        canvas_hotkey_grow_brush="W", canvas_hotkey_move="F", canvas_hotkey_fullscreen="S", canvas_hotkey_reset="R",
        canvas_hotkey_overlap="O", canvas_show_tooltip=True, canvas_auto_expand=True, canvas_blur_prompt=False,
        canvas_disabled_functions=["Overlap"],
    ),
    **_idle(
        "of A1111's own process: console, training, extensions",
        auto_launch_browser="Local", enable_console_prompts=False, show_warnings=False,
        show_gradio_deprecation_warnings=True, samples_log_stdout=False, multiple_tqdm=True,
        enable_upscale_progressbar=True, print_hypernet_extra=False, list_hidden_files=True, hide_ldm_prints=True,
        dump_stacks_on_signal=False, profiling_explanation=None, profiling_enable=False, profiling_activities=["CPU"],
        profiling_record_shapes=True, profiling_profile_memory=True, profiling_with_stack=True,
        profiling_filename="trace.json", api_enable_requests=True, api_forbid_local_requests=True, api_useragent="",
        unload_models_when_training=False, pin_memory=False, save_optimizer_state=False,
        save_training_settings_to_txt=True, dataset_filename_word_regex="", dataset_filename_join_string=" ",
        training_image_repeats_per_epoch=1, training_write_csv_every=500, training_xattention_optimizations=False,
        training_enable_tensorboard=False, training_tensorboard_save_images=False,
        training_tensorboard_flush_every=120, disabled_extensions=[], disable_all_extensions="none",
        restore_config_state_file="",
    ),
    **_OLDER,
}  # fmt: skip
BODIES: Final[Mapping[str, Mapping[str, Field]]] = {
    "txt2img": TEXT_TO_IMAGE, "img2img": IMAGE_TO_IMAGE, "extra-single-image": EXTRAS,
    "extra-batch-images": BATCH_EXTRAS, "png-info": PNG_INFO, "progress": PROGRESS, "interrogate": INTERROGATE,
    "options": OPTIONS, "alwayson_scripts.ControlNet": UNIT,
}  # fmt: skip
"""By route, and for units of the script; `override_settings` has the fields of `options`."""
