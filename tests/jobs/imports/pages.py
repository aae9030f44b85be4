"""Pages with the structure of those that people save: prose, a launch line, configs.

None is a copy; odd spaces, comments behind a `\\` and lost indentation are as browsers leave them.
"""

from __future__ import annotations

BLOG = """白话ZeRO以及实战

ZeRO-1切优化器,ZeRO-2切梯度。

第三步 修改ds_train.sh文件。

LR=1e-4

MASTER_PORT=$(shuf -n 1 -i 10000-65535)

deepspeed --num_gpus=2 #多少张卡写多少--master_port $MASTER_PORT main.py \\
\u00a0 \u00a0 --deepspeed deepspeed.json \\
\u00a0 \u00a0 --do_train \\
\u00a0 \u00a0 --train_file Adverts/train.json \\ #训练数据的路径
\u00a0 \u00a0 --test_file Adverts/dev.json \\ #测试数据的路径
\u00a0 \u00a0 --prompt_column content \\
\u00a0 \u00a0 --response_column summary \\
\u00a0 \u00a0 --overwrite_cache \\
\u00a0 \u00a0 --model_name_or_path owner/tiny \\ #默认模型的路径
\u00a0 \u00a0 --output_dir ./output/adverts-ft-$LR \\ #模型输出路径
\u00a0 \u00a0 --max_source_length 64 \\\u00a0 \u00a0 \u00a0 \u00a0 #输入序列长度
\u00a0 \u00a0 --max_target_length 64 \\
\u00a0 \u00a0 --per_device_train_batch_size 4 \\\u00a0 #每张卡的batch_size
\u00a0 \u00a0 --gradient_accumulation_steps 1 \\
\u00a0 \u00a0 --max_steps 5000 \\
\u00a0 \u00a0 --save_steps 1000 \\
\u00a0 \u00a0 --learning_rate $LR \\
\u00a0 \u00a0 --fp16\u00a0 \u00a0 \u00a0 #fp16精度训练

第四步修改 deepspeed.json

{
\u00a0 "train_micro_batch_size_per_gpu": "auto",
\u00a0 "fp16": {
\u00a0 \u00a0 "enabled": "auto",
\u00a0 \u00a0 "loss_scale": 0,
\u00a0 \u00a0 "initial_scale_power": 16
\u00a0 },
\u00a0 "zero_optimization": {
\u00a0 \u00a0 "stage": 2,\u00a0 #就改这一部分

\u00a0 \u00a0 \u00a0 \u00a0 "offload_optimizer": {
\u00a0 \u00a0 \u00a0 "device": "cpu"
\u00a0 },
\u00a0 \u00a0 "overlap_comm": false
\u00a0 }
}

第五步:运行ds_train.sh文件

\u00a0 • 29
\u00a0 \u00a0 点赞
评论 5
"""

GUIDE = """DeepSpeed由四个阶段组成。
阶段0:
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: allya
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
第二阶段:
Q. 您要启用专家混合训练吗?
compute_environment: LOCAL_MACHINE
deepspeed_config:
gradient_accumulation_steps: 4
offload_optimizer_device: cpu
zero3_init_flag: false
zero_stage: 2
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
训练可以通过简单的命令开始。
accelerate launch <your_training_file.py>
"""

TUTORIAL = """ZeRO-Offload

启动脚本更改

       --model-parallel-size 1 \\
       --hidden-size 4096 \\
       --deepspeed_config ds_zero_offload.config \\
       --checkpoint-activations

   deepspeed --num_nodes 1 --num_gpus 2 ...

DeepSpeed 配置更改

{
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
            "device": "cpu",
        }
        "contiguous_gradients": true
    }
}
"""

OVERVIEW = """数据并行、张量并行与流水线并行

显存: 模型参数 {权重, 梯度}, 优化器状态。

Linux环境准备 # root登录 yum -y install git {struct utsname systemInfo;}
"""
