"""Serves models of several families one after another, in one process of vLLM's environment.

    PYTHON tests/support/vllm_families.py FOLDER ...

Prints a line `RESULT {...}` for each: tokens that it sampled after a prompt, and their log-probabilities; or
the error, if it cannot serve the model.
"""

import gc
import json
import os
import sys

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

from vllm import LLM, SamplingParams

PROMPT = [(7 * place * place + 3 * place + 5) % 94 + 3 for place in range(30)]
"""Longer than the models' windows."""


def served(folder: str) -> dict[str, object]:
    """What the model of a folder samples."""
    llm = LLM(
        model=folder,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=4,
        logprobs_mode="processed_logprobs",
    )
    sampling = SamplingParams(
        max_tokens=12, temperature=1.0, logprobs=0, seed=1, detokenize=False, ignore_eos=True
    )
    (request,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    (answer,) = request.outputs
    ids = list(answer.token_ids)
    logprobs = [of[token].logprob for of, token in zip(answer.logprobs, ids, strict=True)]
    return {"prompt": PROMPT, "ids": ids, "logprobs": logprobs}


def main() -> None:
    """Serve each folder."""
    for folder in sys.argv[1:]:
        try:
            found = served(folder)
        except Exception as error:  # noqa: BLE001
            found = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
