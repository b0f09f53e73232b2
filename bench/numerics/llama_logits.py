"""Logits of every position by llama.cpp: run by measure_kl.py in the interpreter that has it.

    python llama_logits.py MODEL IDS.json OUT.f32

BF16 KV, one sequence, raw float32 [n_tokens, vocab_size].
"""

import json
import sys

import numpy as np
from llama_cpp import Llama

GGML_TYPE_BF16 = 30

model, ids_path, out_path = sys.argv[1:]
with open(ids_path) as file:
    ids = json.load(file)
llama = Llama(
    model,
    n_ctx=len(ids),
    n_batch=512,
    n_threads=2,
    n_threads_batch=2,
    logits_all=True,
    type_k=GGML_TYPE_BF16,
    type_v=GGML_TYPE_BF16,
    verbose=False,
)
llama.eval(ids)
np.array(llama.scores[: len(ids)], dtype="<f4").tofile(out_path)
