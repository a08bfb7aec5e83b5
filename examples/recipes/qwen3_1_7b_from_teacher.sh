#!/usr/bin/env bash
# Qwen3-1.7B learns from a teacher by rejection sampling: any model that litellm reaches plays mini-swe-agent on tasks, the attempts
# that the graders reward are kept, and TRL fine-tunes on them. One GPU of 80 GB, and none while the teacher plays.
#
# Memory   TRL: 27.5 GB for weights, gradients and optimizer
# Fetch    pip install 'harnessgym-rl[all,models,trl]'
#          python -m venv collector      # litellm needs older versions of its neighbours than TRL
#          collector/bin/pip install 'harnessgym-rl[all,litellm]'
#          collector/bin/harnessgym install mini_swe_agent
#          hf download Qwen/Qwen3-1.7B --local-dir models/Qwen3-1.7B
# Run      export OPENAI_API_KEY=...
#          bash examples/recipes/qwen3_1_7b_from_teacher.sh
# Unrun    on GPUs, and with a provider on the internet. CI runs this file on CPUs with a tiny random model and a scripted teacher
#          behind litellm (tests/examples/test_recipe_pipelines.py).
set -euo pipefail
MODEL=${MODEL:-models/Qwen3-1.7B}
TEACHER=${TEACHER:-litellm:openai/gpt-5}
COLLECTOR=${COLLECTOR:-collector/bin/harnessgym}
FOLDER=${FOLDER:-runs/qwen3-1.7b-from-teacher}
TASKS=${TASKS:-192} # of `swe`, which has 192 for training
SAMPLES=${SAMPLES:-4}
AT_ONCE=${AT_ONCE:-16}

"$COLLECTOR" rollout --folder "$FOLDER" --tasks swe --split train --limit "$TASKS" --samples "$SAMPLES" -n "$AT_ONCE" \
    --harness mini_swe_agent --upstream "$TEACHER" --keep-above 1 --export sft "$FOLDER/solved.jsonl"
python examples/recipes/sft_on_messages.py "$FOLDER/solved.jsonl" --model "$MODEL" --out "$FOLDER/model"
