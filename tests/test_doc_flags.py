"""What the pages for people who come from elsewhere say of flags: theirs exist, and ours do."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from attentune.cli.main import COMMANDS
from helpers.doc_blocks import ROOT, prose

# The arguments of transformers' run_glue.py and run_classification.py beside TrainingArguments' own.
SCRIPTS = (
    "task_name dataset_name dataset_config_name max_seq_length overwrite_cache pad_to_max_length "
    "max_train_samples max_eval_samples max_predict_samples train_file validation_file test_file "
    "do_regression text_column_names label_column_name metric_name train_split_name remove_columns "
    "shuffle_train_dataset model_name_or_path config_name tokenizer_name cache_dir use_fast_tokenizer "
    "model_revision token trust_remote_code ignore_mismatched_sizes"
)
# Training arguments that hardly anyone sets; the rest must be on the page.
RARE = (
    "lr_scheduler_kwargs optim_args optim_target_modules average_tokens_across_devices bf16_full_eval "
    "fp16_full_eval activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs "
    "torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache "
    "torch_empty_cache_steps auto_find_batch_size logging_first_step log_on_each_node logging_nan_inf_filter "
    "include_num_input_tokens_seen log_level log_level_replica project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id eval_delay prediction_loss_only eval_on_start eval_do_concat_batches "
    "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics save_on_each_node "
    "enable_jit_checkpoint hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
    "ignore_data_skip restore_callback_states_from_checkpoint accelerator_config parallelism_config "
    "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
    "dataloader_multiprocessing_context dataloader_in_order label_names length_column_name "
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout "
    "fsdp_config debug skip_memory_metrics"
)
_FLAG = re.compile(r"`--(\w+)")


def rows(page: str) -> list[tuple[str, str]]:
    """The rows of a page's tables, first cell and the rest."""
    lines = [line for line in prose(ROOT / "docs" / page).splitlines() if line.startswith("| `--")]
    return [(line.split(" | ")[0], line.split(" | ", 1)[1]) for line in lines]


def ours(command: str = "train") -> set[str]:
    """Every flag of a command."""
    parser = importlib.import_module(f"attentune.cli.{command}").parser()
    return {flag.removeprefix("--") for action in parser._actions for flag in action.option_strings}


def test_the_page_for_run_glue_names_flags_that_exist_on_both_sides() -> None:
    from transformers import TrainingArguments

    training = {field.name for field in dataclasses.fields(TrainingArguments)}
    page = prose(ROOT / "docs/which-tool.md")
    same = set(_FLAG.findall(page[page.index("With the same name") : page.index("| theirs | here |")]))
    assert same <= ours()
    theirs = same.union(*(_FLAG.findall(first) for first, _ in rows("which-tool.md")))
    assert theirs <= training | set(SCRIPTS.split())
    assert (training | set(SCRIPTS.split())) - theirs <= set(RARE.split())
    for first, meaning in rows("which-tool.md"):
        if not meaning.startswith(("not there", "refused", "omit them")):
            assert (found := _FLAG.findall(meaning)), first
            assert set(found) <= ours(), first


@pytest.mark.parametrize("page", ["which-tool.md", "data.md", "small-data.md"])
def test_flags_named_in_prose_exist(page: str) -> None:
    text = re.sub(r"^\| `--.*? \|", "", prose(ROOT / "docs" / page), flags=re.MULTILINE)
    theirs = {"do_train", "do_eval", "do_predict", "deepspeed", "fsdp", "no_cuda"}
    known = theirs.union(*(ours(command) for command in COMMANDS))
    assert set(_FLAG.findall(text)) <= known
