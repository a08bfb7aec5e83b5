"""Samples with vLLM's CPU build and keeps the experts that it chose; run by the Python of vLLM's environment.

    PYTHON tests/support/vllm_routing.py FOLDER DTYPE PROMPTS.npy OUT.npz NEW_TOKENS

PROMPTS are int [rows, tokens]. OUT has `ids` [rows, tokens + new], `logprobs` [rows, new] and `experts`
[rows, tokens + new - 1, layers, top_k].

vLLM returns routed experts only from a model runner that needs Triton, which CPUs lack. So they are taken where
that runner takes them, from the routers' own hook.
"""

import os
import sys

import numpy as np

os.environ.update(
    OMP_NUM_THREADS="1",
    VLLM_CPU_CI_ENV="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.fused_moe.layer import MoERunner


def main() -> None:
    """Sample one prompt at a time, so that the routers see the tokens of one row in order."""
    folder, dtype, prompts_path, out, new = sys.argv[1:]
    prompts = np.load(prompts_path)
    llm = LLM(
        model=folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=prompts.shape[1] + int(new),
        max_num_seqs=1,
        logprobs_mode="processed_logprobs",
    )
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    runners = [module for module in model.modules() if isinstance(module, MoERunner)]
    chosen: dict[int, list[torch.Tensor]] = {runner.layer_id: [] for runner in runners}
    for runner in runners:
        own = chosen[runner.layer_id]
        runner.router.set_capture_fn(lambda experts, own=own: own.append(experts.clone()))
    ids, logprobs, experts = [], [], []
    for number, prompt in enumerate(prompts):
        for own in chosen.values():
            own.clear()
        sampling = SamplingParams(
            max_tokens=int(new), temperature=1.0, logprobs=0, seed=number, detokenize=False, ignore_eos=True
        )
        (request,) = llm.generate([{"prompt_token_ids": prompt.tolist()}], sampling, use_tqdm=False)
        (answer,) = request.outputs
        tokens = list(answer.token_ids)
        ids.append([*prompt.tolist(), *tokens])
        logprobs.append([of[token].logprob for of, token in zip(answer.logprobs, tokens, strict=True)])
        layers = [torch.cat(chosen[layer]) for layer in sorted(chosen)]
        experts.append(torch.stack(layers, dim=1)[: len(ids[-1]) - 1].numpy())
    np.savez(out, ids=np.array(ids), logprobs=np.array(logprobs), experts=np.array(experts))


if __name__ == "__main__":
    main()
