"""Scripts with the structure and the arguments of those that public repositories have.

None is a copy: paths, numbers and order are our own. Each is read as it stands, or is refused with
everything that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.jobs.imports.programs.told import of
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.imports.combine_configs import import_configs
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
from zerotools.jobs.launcher_keys.trainer_keys import ALL_LINEAR
from zerotools.jobs.text.config_document import Document


class Script(NamedTuple):
    """`keys` of the job, words of its `steps`, or of all the `problems` for which it is refused."""

    text: str
    keys: Mapping[str, Any] = MappingProxyType({})
    steps: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


CLM = "--output_dir out --per_device_train_batch_size 2 --learning_rate 2e-5"

SCRIPTS = {
    "fastchat, lora with variables of the caller": Script(
        "deepspeed --num_gpus 6 pkg/train/train_lora.py \\\n"
        "    --model_name_or_path owner/base-7b \\\n    --data_path $DATA_PATH \\\n"
        f"    --deepspeed $DS_CONFIG \\\n    --lora_r 8 {CLM} \\\n    --flash_attn False\n",
        problems=("run.sh:3: --data_path: $DATA_PATH", "run.sh:4: --deepspeed: $DS_CONFIG"),
    ),
    "fastchat, torchrun with FSDP": Script(
        "torchrun --nproc_per_node=8 --master_port=20001 pkg/train/train_mem.py \\\n"
        "    --model_name_or_path ~/weights/base-13b  \\\n    --data_path ~/data/chats.json \\\n"
        f"    {CLM} --gradient_accumulation_steps 4 --bf16 True --tf32 True \\\n"
        "    --fsdp \"full_shard auto_wrap\" --fsdp_transformer_layer_cls_to_wrap 'ALayer' \\\n"
        '    --evaluation_strategy "steps" --eval_steps 1200 --save_strategy "steps" \\\n'
        "    --save_steps 1200 --lazy_preprocess True --model_max_length 2048\n",
        {"gpus": 8, "train.batch_size": 64, "zero.stage": 3, "checkpoint.every": 1200},
        ("chats.json was not found; copy the file there, or set data.examples",),
    ),
    "alpaca, a readme with placeholders": Script(
        "torchrun --nproc_per_node=4 --master_port=<your_random_port> train.py \\\n"
        "    --model_name_or_path <your_path_to_the_model> --data_path ./data.json \\\n"
        f"    {CLM} --bf16 True\n",
        problems=("--model_name_or_path: $your_path_to_the_model",),
    ),
    "llava, pictures": Script(
        "#!/bin/bash\n\ndeepspeed pkg/train/train_mem.py \\\n    --deepspeed ds.json \\\n"
        "    --model_name_or_path owner/base-13b --version v1 --data_path ./mix.json \\\n"
        "    --image_folder ./pictures --vision_tower owner/clip-vit \\\n"
        f"    --mm_projector_type mlp2x_gelu --group_by_modality_length True {CLM}\n",
        problems=("--image_folder", "--vision_tower"),
    ),
    "qwen, options of the launcher in a variable": Script(
        "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nDIR=`pwd`\n\nGPUS_PER_NODE=8\n"
        'NNODES=1\nNODE_RANK=0\n\nMODEL="Qwen/Qwen-7B" # a path, if it was downloaded\n'
        '# what the data must be\nDATA="path_to_data"\n\n'
        'DISTRIBUTED_ARGS="\n    --nproc_per_node $GPUS_PER_NODE \\\n    --nnodes $NNODES \\\n'
        '    --node_rank $NODE_RANK\n"\n\ntorchrun $DISTRIBUTED_ARGS finetune.py \\\n'
        f"    --model_name_or_path $MODEL --data_path $DATA {CLM} --use_lora \\\n"
        '    --report_to "none" --adam_beta2 0.95 --output_dir $DIR/output --max_steps 9\n',
        {
            "gpus": 8,
            "lora.rank": 64,
            "lora.alpha": 16,
            "train.betas": (0.9, 0.95),
        },
        (
            "hf download Qwen/Qwen-7B --local-dir Qwen/Qwen-7B",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "path_to_data was not found",
        ),
    ),
    "deepspeed-chat, arguments of the script with defaults": Script(
        '#!/bin/bash\nOUTPUT=$1\nZERO_STAGE=$2\nif [ "$OUTPUT" == "" ]; then\n'
        '    OUTPUT=./output\nfi\nif [ "$ZERO_STAGE" == "" ]; then\n    ZERO_STAGE=3\nfi\n'
        "mkdir -p $OUTPUT\n\nCUDA_VISIBLE_DEVICES=0 deepspeed --master_port=29600 main.py \\\n"
        "   --offload --dtype bf16 --data_path owner/rm-static other/full-hh \\\n"
        "   --data_split 2,4,4 --model_name_or_path owner/base-7b-hf \\\n"
        "   --per_device_train_batch_size 4 --max_seq_len 512 --num_train_epochs 4 \\\n"
        "   --zero_stage $ZERO_STAGE --deepspeed --lora_dim 128 --output_dir $OUTPUT \\\n"
        "   &> $OUTPUT/training.log\n",
        {
            "gpus": 1,
            "zero.stage": 3,
            "offload.params": "cpu",
            "lora.rank": 128,
            "lora.alpha": 1,
            "train.precision": "bf16",
            "train.betas": (0.9, 0.95),
        },
        (
            "hf download --repo-type dataset owner/rm-static --local-dir owner/rm-static",
            "set data.examples to the files of the data",
        ),
    ),
    "deepspeed-chat, half precision where it is told nothing": Script(
        "deepspeed main.py --data_path owner/rm-static --data_split 2,4,4 \\\n"
        "   --model_name_or_path owner/base-7b-hf --zero_stage 2 --deepspeed --output_dir o\n",
        {
            "train.precision": "fp16",
            "train.learning_rate": 1e-3,
            "train.schedule": "cosine",
            "train.batch_size": 16,
            "seed": 1234,
        },
    ),
    "deepspeed-chat, preferences": Script(
        "deepspeed main.py --data_path owner/rm-static --data_split 0,1,0 --beta 0.2 \\\n"
        "   --model_name_or_path owner/base-7b-hf --zero_stage 2 --deepspeed --output_dir o\n",
        {"dpo.beta": 0.2, "train.learning_rate": 5e-5, "train.precision": "fp16"},
        ("set data.preferences to the files of the data",),
    ),
    "deepspeed-chat, preferences that are smoothed": Script(
        "deepspeed main.py --data_path owner/rm-static --label_smoothing 0.1 \\\n"
        "   --model_name_or_path owner/base-7b-hf --zero_stage 2 --deepspeed --output_dir o\n",
        problems=("--label_smoothing",),
    ),
    "deepspeed-chat, a reward model": Script(
        "deepspeed main.py --data_path owner/rm-static --num_padding_at_beginning 0 \\\n"
        "   --model_name_or_path owner/base-7b-hf --weight_decay 0.1 --output_dir o\n",
        problems=("--num_padding_at_beginning", "reward model"),
    ),
    "qwen1.5, adapters of the program's own layers": Script(
        "torchrun --nproc_per_node 2 finetune.py --model_name_or_path Qwen/Qwen1.5-7B-Chat \\\n"
        f"    --data_path chats.jsonl --use_lora --bf16 True {CLM}\n",
        {"lora.rank": 64, "lora.alpha": 16, "lora.target_modules": ALL_LINEAR["qwen2"]},
        ("chats.jsonl was not found",),
    ),
    "alpaca-lora, the batch of a step and of a GPU": Script(
        "torchrun --nnodes 1 --nproc_per_node 4 finetune.py \\\n  --base_model 'owner/base-7b' \\\n"
        "  --data_path 'alpaca.json' --output_dir './out' --batch_size 64 --micro_batch_size 2 \\\n"
        "  --num_epochs 5 --cutoff_len 1024 --val_set_size 0 --train_on_inputs \\\n"
        "  --lora_target_modules '[q_proj,o_proj]' --group_by_length\n",
        {
            "gpus": 4,
            "train.batch_size": 64,
            "train.micro_batch_size": 2,
            "train.epochs": 5.0,
            "train.learning_rate": 3e-4,
            "train.warmup_steps": 100,
            "train.precision": "fp16",
            "data.sequence_length": 1024,
            "lora.rank": 8,
            "lora.alpha": 16,
            "lora.target_modules": ("q_proj", "o_proj"),
        },
        ("alpaca.json was not found; copy the file there, or set data.examples",),
    ),
    "trl, preferences with adapters": Script(
        "accelerate launch --num_processes 2 examples/scripts/dpo.py --model_name_or_path o/m \\\n"
        "  --dataset_name o/pairs --output_dir out --beta 0.05 --use_peft --max_length 512 \\\n"
        "  --per_device_train_batch_size 2 --optim paged_adamw_32bit\n",
        {
            "dpo.beta": 0.05,
            "lora.rank": 16,
            "lora.alpha": 32,
            "train.learning_rate": 1e-6,
            "train.optimizer": "adamw",
            "train.precision": "bf16",
            "data.sequence_length": 512,
        },
        ("set data.preferences to the files of the data",),
    ),
    "chinese-llama-alpaca, a seed by chance": Script(
        f"torchrun --nproc_per_node 2 run_clm.py --model_name_or_path m {CLM} --seed $RANDOM \\\n"
        "  --train_file corpus.txt\n",
        {"seed": 42},
    ),
    "belle, whole commands in comments": Script(
        "#! /bin/bash\nexport CUDA_VISIBLE_DEVICES='0,1'\nexport WANDB_PROJECT=...\n"
        "export ABS_PATH=...\nmodel=/path_to_llm/base/ # or another\n\n"
        'output_dir="$ABS_PATH/${WANDB_PROJECT}"\n'
        "cutoff_len=1024\n\n# torchrun --nproc_per_node 8 src/sft.py \\\n#     --llama \\\n"
        "torchrun --nproc_per_node 2 src/sft.py \\\n    --ddp_timeout 36000 \\\n"
        "    --model_name_or_path ${model} --llama --use_lora --train_file t.json \\\n"
        f"    --validation_file v.json {CLM} --model_max_length ${{cutoff_len}} \\\n"
        "    --output_dir ${output_dir} \\\n   # --use_flash_attention\n   # --more ...\n",
        {"gpus": 2, "data.sequence_length": 1024, "lora.rank": 8},
        ("t.json was not found", "v.json was not found", "WANDB_PROJECT"),
    ),
    "chatglm2, p-tuning": Script(
        "PRE_SEQ_LEN=128\nLR=2e-2\nNUM_GPUS=1\n\n"
        "torchrun --standalone --nnodes=1 --nproc-per-node=$NUM_GPUS main.py --do_train \\\n"
        "    --train_file t.json --prompt_column content --response_column summary \\\n"
        "    --model_name_or_path owner/chatglm2-6b --output_dir o-$PRE_SEQ_LEN-$LR \\\n"
        "    --learning_rate $LR --pre_seq_len $PRE_SEQ_LEN --quantization_bit 4\n",
        problems=("--pre_seq_len", "--quantization_bit"),
    ),
    "chatglm3, a date in the directory": Script(
        "#! /usr/bin/env bash\n\nset -ex\n\nLR=1e-4\nNUM_GPUS=4\nNAME=advertise\n"
        "STAMP=`date +%Y%m%d-%H%M%S`\nOUTPUT=output/${NAME}-${STAMP}-${LR}\n"
        "MASTER_PORT=$(shuf -n 1 -i 10000-65535)\n\nmkdir -p $OUTPUT\n\n"
        "torchrun --standalone --nnodes=1 --nproc_per_node=$NUM_GPUS finetune.py \\\n"
        "    --train_format input-output --train_file t.jsonl --output_dir $OUTPUT \\\n"
        "    --model_name_or_path owner/base-6b --max_source_length 1024 \\\n"
        "    --per_device_train_batch_size 4 --max_steps 500 --learning_rate $LR --fp16 \\\n"
        "    --deepspeed ds.json 2>&1 | tee ${OUTPUT}/train.log\n",
        {"gpus": 4, "train.precision": "fp16", "output_dir": None, "train.batch_size": 16},
    ),
    "yi, a directory of data": Script(
        '#/usr/bin/env bash\n\ncd "$(dirname "${BASH_SOURCE[0]}")/../sft/"\n\n'
        "deepspeed main.py \\\n\t--data_path ../example_data/ \\\n\t--model_name_or_path /base \\\n"
        "\t--per_device_train_batch_size 1 \\\n\t--max_seq_len 4096 \\\n\t--zero_stage 2 \\\n"
        "\t--deepspeed \\\n\t--offload \\\n\t--num_train_epochs 4 --output_dir ./model\n",
        {"gpus": None, "offload.optimizer": "cpu", "train.epochs": 4.0},
        ("/base was not found", "example_data was not found"),
    ),
    "llama-factory, a YAML behind the program": Script(
        "#!/bin/bash\n\nNPROC_PER_NODE=4\nNNODES=1\nRANK=0\nMASTER_PORT=29500\n\n"
        "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun \\\n    --nproc_per_node $NPROC_PER_NODE \\\n"
        "    --nnodes $NNODES \\\n    --node_rank $RANK \\\n    --master_port $MASTER_PORT \\\n"
        "    src/train.py sft.yaml\n",
        {"gpus": 4, "train.learning_rate": 1e-5, "train.batch_size": 8},
    ),
    "llama-factory, arguments": Script(
        "#!/bin/bash\n\nCUDA_VISIBLE_DEVICES=0,1 accelerate launch \\\n"
        "    --num_processes 2 ../../src/train_bash.py \\\n    --stage sft --do_train \\\n"
        "    --model_name_or_path owner/base-70b --dataset a_en,b_en --dataset_dir ../data \\\n"
        "    --template default --finetuning_type lora --lora_target q_proj,v_proj \\\n"
        f"    {CLM} --cutoff_len 1024 --val_size 0.1 --quantization_bit 4 --plot_loss --fp16\n",
        {
            "gpus": 2,
            "lora.target_modules": ("q_proj", "v_proj"),
            "lora.frozen_precision": "nf4",
            "data.sequence_length": 1024,
        },
    ),
    "llama-factory-cli, forced to torchrun": Script(
        "FORCE_TORCHRUN=1 NPROC_PER_NODE=2 llamafactory-cli train sft.yaml "
        "learning_rate=3e-5 output_dir=other\n",
        {"gpus": 2, "train.learning_rate": 3e-5},
    ),
    "ms-swift, settings in front and a sum": Script(
        "nproc_per_node=2\n\nPYTHONPATH=../.. \\\nCUDA_VISIBLE_DEVICES=0,1 \\\n"
        "NPROC_PER_NODE=$nproc_per_node \\\nswift sft \\\n    --model owner/base-7b \\\n"
        "    --train_type lora --target_modules q_proj v_proj \\\n"
        "    --dataset owner/cognition#1000 \\\n    --num_train_epochs 1 \\\n"
        "    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\\n"
        "    --model_author swift --model_name a-robot --deepspeed default-zero3\n",
        {"gpus": 2, "train.batch_size": 16, "zero.stage": 3, "train.learning_rate": 1e-4},
        (
            "modelscope download --model owner/base-7b --local_dir owner/base-7b",
            "modelscope download --dataset owner/cognition --local_dir owner/cognition",
        ),
    ),
    "ms-swift, all weights": Script(
        "# 76GiB\nCUDA_VISIBLE_DEVICES=0 \\\nswift sft \\\n    --model owner/base-7b \\\n"
        "    --train_type full \\\n    --dataset owner/cognition#1000 --logging_steps 5\n",
        {"gpus": 1, "train.batch_size": 16, "train.learning_rate": 1e-5, "lora.rank": None},
    ),
    "openrlhf, a command in a here-document": Script(
        "set -x\n\nread -r -d '' training_commands <<EOF\nopenrlhf.cli.train_dpo \\\n"
        "   --save_path ./out \\\n   --pretrain owner/base-8b \\\n   --beta 0.1\nEOF\n"
        '    # --ipo [for IPO]\n\nif [[ ${1} != "slurm" ]]; then\n'
        "    torchrun --standalone --nproc-per-node ${NPROC_PER_NODE:-8} "
        "-m $training_commands\nfi\n",
        problems=("the arguments of openrlhf.cli.train_dpo are not read; run the program with",),
    ),
    "openrlhf, under srun in a container": Script(
        "#!/bin/bash\n#SBATCH -N 1\nreadonly GPUS_PER_NODE=8\n"
        "readonly PROJECT_PATH=$(cd ../../; pwd)\n"
        'srun --container-image="$IMAGE_NAME" \\\n    --container-mounts="$PROJECT_PATH:/x" \\\n'
        '    bash -c " cd /x; pip install . ; torchrun \\\n--nproc_per_node $GPUS_PER_NODE '
        "--node_rank $SLURM_PROCID -m pkg.train --model_name_or_path owner/base \\\n"
        f'{CLM} --train_file t.txt --max_steps 5" &>> $JOBLOG\n',
        {"gpus": 8, "train.steps": 5},
        ("srun: the daemon starts the ranks",),
    ),
    "trl, a command in a string": Script(
        '#!/bin/bash\nMODEL_NAME="owner/tiny"\nEXTRA_ACCELERATE_ARGS=""\n'
        'EXTRA_TRAINING_ARGS="""--use_peft \\\n    --load_in_4bit\n"""\n\nNUM_GPUS=2\n\n'
        'if [[ "${TRL_CONFIG}" == "" ]]; then\n  EXTRA_ACCELERATE_ARGS=""\nelse\n'
        '  EXTRA_ACCELERATE_ARGS="--config_file $TRL_CONFIG"\nfi\n\n\nCMD="""\n'
        "accelerate launch $EXTRA_ACCELERATE_ARGS \\\n    --num_processes $NUM_GPUS \\\n"
        "    `pwd`/scripts/sft.py \\\n    --model_name $MODEL_NAME \\\n"
        '    --dataset_name imdb --output_dir out --max_steps 5 $EXTRA_TRAINING_ARGS\n"""\n\n'
        '{ # try\n    echo $CMD\n    eval "$CMD"\n} || { # catch\n    exit 1\n}\nexit 0',
        {"gpus": 2, "lora.frozen_precision": "nf4", "train.steps": 5},
        ("hf download --repo-type dataset imdb --local-dir imdb",),
    ),
    "transformers, a readme": Script(
        "python run_clm.py \\\n    --model_name_or_path owner/gpt2 \\\n"
        "    --dataset_name owner/wikitext \\\n    --dataset_config_name wikitext-2-raw-v1 \\\n"
        "    --per_device_train_batch_size 8 \\\n    --do_train \\\n    --output_dir /tmp/clm\n",
        {"gpus": 1, "train.batch_size": 8},
        ("set data.text to the files of the data",),
    ),
    "docker, with variables": Script(
        "docker run --rm --gpus all -e CUDA_VISIBLE_DEVICES=0,1 -v $PWD:/w deepspeed/deepspeed \\\n"
        f"  deepspeed train.py {CLM} --model_name_or_path m --train_file t.txt --max_steps 3",
        {"gpus": 2},
        ("docker run: the job runs outside the container",),
    ),
    "docker exec, with a shell": Script(
        f"docker exec -it box bash -lc 'cd /w && deepspeed --num_gpus 2 t.py {CLM} "
        "--model_name_or_path m --train_file t.txt'",
        {"gpus": 2},
    ),
    "uv, poetry, conda": Script(
        "conda activate x\nconda run -n env --no-capture-output python -m torch.distributed.run "
        f"--nproc_per_node 2 t.py {CLM} --model_name_or_path m --train_file t.txt",
        {"gpus": 2},
        ("conda run: set python of the job file",),
    ),
    "uv, with a package of the launcher's name": Script(
        f"uv run --with deepspeed deepspeed --num_gpus 3 t.py {CLM} --model_name_or_path m "
        "--train_file t.txt",
        {"gpus": 3},
    ),
    "baichuan2, an empty hostfile and a pipe of both streams": Script(
        'hostfile=""  # one machine\n# hostfile="/path/to/hostfile"  # several\n'
        'deepspeed --hostfile=$hostfile fine-tune.py  \\\n    --report_to "none" \\\n'
        '    --data_path "data/chats.json" --model_name_or_path "owner/Base-7B" \\\n'
        "    --save_strategy epoch --lr_scheduler_type constant --adam_beta2 0.98 \\\n"
        f"    {CLM} --model_max_length 512 --max_steps 5 --tf32 True |& tee 1.txt\n",
        {"data.sequence_length": 512, "train.betas": (0.9, 0.98), "train.steps": 5},
        ("hf download owner/Base-7B", "data/chats.json was not found"),
    ),
    "moss, a sum of machines and arguments of its own": Script(
        "num_machines=1\nnum_processes=$((num_machines * 4))\nmachine_rank=0\n\n"
        "accelerate launch \\\n\t--num_processes $num_processes \\\n"
        "\t--num_machines $num_machines --machine_rank $machine_rank \\\n"
        "\t--deepspeed_multinode_launcher standard finetune_own.py \\\n"
        "\t--model_name_or_path owner/base --data_dir ./sft_data --output_dir ./ckpts \\\n"
        "\t--n_epochs 2 --train_bsz_per_gpu 4 --eval_bsz_per_gpu 4 --save_step 2000\n",
        {"gpus": 4, "train.epochs": 2.0, "train.batch_size": 16, "checkpoint.every": 2000},
    ),
    "firefly, its arguments in a JSON": Script(
        "deepspeed --num_gpus=4 train.py --train_args_file args/qlora.json --learning_rate 3e-5\n",
        {
            "gpus": 4,
            "train.batch_size": 64,
            "train.learning_rate": 3e-5,
            "lora.rank": 64,
            "lora.frozen_precision": "nf4",
        },
        ("hf download owner/base-7b", "chats.jsonl was not found"),
    ),
    "firefly, all weights and a JSON that is not there": Script(
        "torchrun --nproc_per_node={num_gpus} train.py --train_args_file args/full.json\n",
        problems=('--nproc_per_node = "{num_gpus}"', "args/full.json: there is no such config"),
    ),
    "internlm, xtuner's Python": Script(
        "cd /root/ft\nmkdir hf\nexport MKL_SERVICE_FORCE_INTEL=1\n"
        "NPROC_PER_NODE=2 xtuner train ./own_copy.py --deepspeed deepspeed_zero2\n",
        problems=("run.sh:4: the settings of xtuner are Python",),
    ),
    "h2o-llmstudio, a YAML of its own": Script(
        "CUDA_VISIBLE_DEVICES=0 python train.py -Y args/own.yaml\n",
        problems=("run.sh:1: -Y: args/own.yaml has settings of the program",),
    ),
    "litgpt, download and finetune": Script(
        "# 1) Download\nlitgpt download owner/base\n\n# 2) Finetune\n"
        "litgpt finetune_lora owner/base \\\n  --data JSON --data.json_path d.json \\\n"
        "  --train.micro_batch_size 1\n\nlitgpt chat out/final\n",
        problems=("run.sh:5: the arguments of litgpt are not read; run the program with --as",),
    ),
}

OWN_SETTINGS = """architecture:
  backbone_dtype: float16
training:
  batch_size: 2
"""
ARGUMENTS = """{
  "output_dir": "out", "model_name_or_path": "owner/base-7b", "train_file": "chats.jsonl",
  "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "learning_rate": 1e-4,
  "num_train_epochs": 1, "max_seq_length": 1024, "fp16": true, "deepspeed": null,
  "train_mode": "qlora", "lora_rank": 64, "lora_alpha": 16
}
"""
YAML = """model_name_or_path: owner/base
stage: sft
finetuning_type: full
dataset: a
learning_rate: 1.0e-5
per_device_train_batch_size: 2
"""


def check(script: Script) -> None:
    """Import a script: all that it says of the job, of the next steps and of problems is true."""
    try:
        imported = of(read_launch(script.text, "run.sh", Path(), lines=True, lenient=True))
    except ZerotoolsError as error:
        pytest.fail(f"{error}")
    problems = "" if imported.problem is None else str(imported.problem)
    assert bool(problems) == bool(script.problems), problems
    assert all(each in problems for each in script.problems), problems
    assert {key: look_up(imported.tree, key) for key in script.keys} == script.keys
    steps = "\n".join(imported.findings.steps)
    assert all(each in steps for each in script.steps), steps


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_public_script_imports_as_it_stands_or_with_all_its_problems(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    Path("args").mkdir()
    for name_of_file, text in (
        ("sft.yaml", YAML),
        ("args/qlora.json", ARGUMENTS),
        ("args/own.yaml", OWN_SETTINGS),
    ):
        Path(name_of_file).write_text(text)
    check(SCRIPTS[name])


@pytest.mark.parametrize("mode", ["full", "qlora"])
def test_trl_and_the_trainer_read_their_arguments_from_a_file(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(ARGUMENTS.replace("qlora", mode))
    Path("data.json").write_text("[]")
    line = "accelerate launch --num_processes 2 run_sft.py"
    for arguments in ("--config recipe.yaml", "recipe.yaml", "recipe.yaml data.json"):
        script = f"{line} {arguments}"
        imported = of(read_launch(script, "run.sh", Path(), lines=True))
        assert imported.problem is None
        assert look_up(imported.tree, "train.batch_size") == 32
        assert look_up(imported.tree, "lora.rank") == (64 if mode == "qlora" else None)


@pytest.mark.parametrize(
    ("line", "dropout"),
    [
        ("llamafactory-cli train --model_name_or_path o/Llama-2-7b --dataset d --stage sft", None),
        ("swift sft --model o/Llama-2-7b --dataset d --train_type lora", 0.05),
    ],
)
def test_a_program_whose_default_rank_is_known_leaves_no_doubt(
    line: str, dropout: float | None
) -> None:
    imported = of(read_launch(f"{line}\n", "run.sh", Path(), lines=True))
    assert look_up(imported.tree, "lora.rank") == 8
    assert look_up(imported.tree, "lora.dropout") == dropout
    assert not any("may differ" in each for each in imported.findings.differences)


def test_names_of_directories_are_not_names_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    Path("bases").mkdir()

    def steps(model: str, data: str) -> str:
        line = f"deepspeed t.py {CLM} --model_name_or_path {model} --data_path {data}"
        return "\n".join(of(read_launch(line, "run.sh", Path(), lines=True)).findings.steps)

    assert "hf download" not in steps("bases/big", "data/train")
    assert "hf download" not in steps("output/checkpoint-9", "bases/chats")
    said = steps("owner/big", "owner/chats")
    assert "hf download owner/big" in said
    assert "hf download --repo-type dataset owner/chats" in said


def test_text_has_the_tokens_of_the_model_and_not_bytes() -> None:
    text = f"torchrun --nproc_per_node 2 run_clm.py --model_name_or_path m {CLM}"
    imported = of(read_launch(f"{text} --train_file corpus.txt", "run.sh", Path(), lines=True))
    assert look_up(imported.tree, "data.text")
    assert look_up(imported.tree, "data.tokenizer") == look_up(imported.tree, "model.path")
    examples = of(read_launch(f"{text} --data_path a.json", "run.sh", Path(), lines=True))
    assert look_up(examples.tree, "data.examples")
    assert look_up(examples.tree, "data.tokenizer") is None


def test_a_scheduler_of_deepspeed_takes_the_place_of_the_trainer_s() -> None:
    """As `deepspeed_optim_sched` of transformers has it: the Trainer makes none then."""
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}
    config = Document("ds.json", {"zero_optimization": {"stage": 2}, "scheduler": scheduler}, {})
    line = f"deepspeed --num_gpus 2 f.py {CLM} --lr_scheduler_type cosine --max_steps 10"
    run = read_launch(f"{line} --warmup_steps 3 --deepspeed ds.json", "x", Path(), lines=True)
    imported = import_configs(None, run=run, deepspeed=config)
    assert imported.problem is None
    assert look_up(imported.tree, "train.schedule") == "constant"
    assert look_up(imported.tree, "train.warmup_steps") == 3
    row = next(row for row in imported.findings.rows if row.key == "--lr_scheduler_type")
    assert row.why == "the Trainer uses the scheduler in ds.json instead: WarmupLR"


def test_adapters_in_a_file_of_their_own_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"torchrun --nproc_per_node 2 sft.py --model_name_or_path m --train_file t.json {CLM}"
    line = f"{text} --use_lora --lora_config lora.json"
    absent = of(read_launch(line, "run.sh", Path(), lines=True))
    assert any("lora.json was not found; set lora.rank" in step for step in absent.findings.steps)
    Path("lora.json").write_text('{"lora_r": 4, "lora_alpha": 12, "target_modules": ["q_proj"]}')
    imported = of(read_launch(line, "run.sh", Path(), lines=True))
    assert imported.problem is None
    keys = ("rank", "alpha", "target_modules")
    assert [look_up(imported.tree, f"lora.{key}") for key in keys] == [4, 12, ("q_proj",)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen1.5-0.5B-Chat", "qwen2"),
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("meta-llama/Llama-2-7b-hf", "llama"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama"),
        ("meta-llama/Llama-3.1-8B", "llama"),
        ("lmsys/vicuna-7b-v1.5", "llama"),
        ("decapoda-research/llama-7b-hf", "llama"),
        ("01-ai/Yi-6B", "llama"),
        ("mistralai/Mistral-7B-v0.1", "mistral"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi3"),
        ("EleutherAI/pythia-1.4b", "gpt_neox"),
        ("Qwen/Qwen-7B", None),
        ("Qwen/Qwen2-VL-7B", None),
        ("Qwen/Qwen3-30B-A3B", None),
        ("meta-llama/Llama-4-Scout", None),
        ("google/gemma-2-9b", "gemma"),
        ("google/codegemma-7b", "gemma"),
        ("google/gemma-3-4b-it", None),
        ("google/paligemma-3b-pt-224", None),
        ("google/recurrentgemma-2b", None),
        ("Qwen/Qwen2-57B-A14B", None),
        ("Qwen/Qwen2.5-Omni-7B", None),
        ("Qwen/Qwen2-Audio-7B", None),
        ("llava-hf/llava-v1.6-mistral-7b-hf", None),
        ("meta-llama/Llama-3.2-11B-Vision", None),
        ("mistralai/Mistral-Small-3.1-24B-Base-2503", None),
        ("bigcode/starcoder", None),
        ("me/model", None),
    ],
)
def test_all_linear_layers_of_a_model_that_is_not_here_are_those_of_its_name(
    name: str, kind: str | None
) -> None:
    text = f"torchrun --nproc_per_node 2 f.py --model_name_or_path {name} {CLM} --lora_r 8"
    line = f"{text} --train_file t.json --target_modules all"
    imported = of(read_launch(line, "run.sh", Path(), lines=True))
    if kind is None:
        assert "set lora.target_modules to their names" in str(imported.problem)
    else:
        assert imported.problem is None
        assert look_up(imported.tree, "lora.target_modules") == ALL_LINEAR[kind]
