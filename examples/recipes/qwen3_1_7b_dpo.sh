#!/usr/bin/env bash
# Qwen3-1.7B learns to prefer its own better attempts at repairing Python packages to its worse ones: DPO on recorded tokens, one GPU
# of 80 GB.
#
# Memory   vLLM first; then, once it is stopped, TRL: 34.4 GB for weights, gradients, optimizer and the reference model
# Fetch    pip install 'harnessgym-rl[all,models,trl]' vllm
#          harnessgym install mini_swe_agent
#          hf download Qwen/Qwen3-1.7B --local-dir models/Qwen3-1.7B
# Engine   vllm serve models/Qwen3-1.7B --port 8000 --max-model-len 8192 --logprobs-mode processed_logprobs
# Run      bash examples/recipes/qwen3_1_7b_dpo.sh collect      # then stop vLLM
#          bash examples/recipes/qwen3_1_7b_dpo.sh train
# Unrun    on GPUs. CI runs this file on CPUs with a tiny random model (tests/examples/test_recipe_pipelines.py).
set -euo pipefail
MODEL=${MODEL:-models/Qwen3-1.7B}
ENGINE=${ENGINE:-http://127.0.0.1:8000}
FOLDER=${FOLDER:-runs/qwen3-1.7b-dpo}
TASKS=${TASKS:-swe}
SAMPLES=${SAMPLES:-8} # a pair needs a good and a bad attempt at the same task
MAX_TOKENS=${MAX_TOKENS:-2048}

if [ "$1" = collect ]; then
    harnessgym rollout --folder "$FOLDER" --tasks "$TASKS" --split train --harness mini_swe_agent --set prewarm=true \
        --upstream "$ENGINE" --samples "$SAMPLES" --max-tokens "$MAX_TOKENS" --max-length 8192 -n 32
    harnessgym traces verify "$FOLDER"
else # TRL's own defaults but for what saves memory: a rate of 1e-6, beta 0.1; further settings may follow
    harnessgym train-offline "$FOLDER" --method dpo --policy "$MODEL" --out "$FOLDER/model" \
        --set num_train_epochs=1 --set per_device_train_batch_size=1 --set gradient_accumulation_steps=8 --set bf16=true "${@:2}"
fi
